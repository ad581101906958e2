"""How many processes make up this run, as the launchers tell in the environment."""

from __future__ import annotations

import os

from configs.errors import ConfigError

# JAX's own variables, those of Slurm's srun and of Open MPI.
COUNTS = ("JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def refuse_directories_apart(run_dir_is_given: bool) -> None:
    """Raises ConfigError where each of several processes would choose a run.dir of its own."""
    counts = {name: os.environ.get(name, "1") for name in COUNTS}
    several = [f"{name}={count}" for name, count in counts.items() if count not in ("", "1")]
    if several and not run_dir_is_given:
        raise ConfigError(
            [
                f"run.dir=null: the processes of one run ({several[0]}) share a directory; "
                "run.dir=DIR, on a file system that all of them see"
            ]
        )
