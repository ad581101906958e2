"""The step and everything around it: state, loop, metrics, checkpoints, signals, modes."""
