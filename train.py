"""FoldText: `python train.py [overrides]`; see README.md and `python train.py --help`."""

from configs import Config
from configs.command_line import main
from sweeps import sweep


def run(config: Config) -> int:
    """Does what the checked config says; JAX is imported only now."""
    from training.modes import run as run_mode

    return run_mode(config)


def complete(config: Config) -> Config:
    """The config with the model of init.from_hf."""
    from training.folder_model import completed

    return completed(config)


if __name__ == "__main__":
    from training.signals import leave

    leave(main(run, sweep, complete=complete))
