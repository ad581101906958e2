"""FoldText's entrypoint: `python train.py [overrides]`; see README.md and `python train.py --help`."""

import sys

from configs.command_line import main


def run(config: object) -> int:
    """Runs a checked config; JAX is imported only now."""
    from training.modes import run as run_mode

    return run_mode(config)


if __name__ == "__main__":
    sys.exit(main(run))
