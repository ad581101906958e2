"""hydra/launcher=process: Hydra's launcher interface to `sweeps.processes`; found by Hydra itself.

Hydra loads plugins from the namespace `hydra_plugins` alone, and this folder is part of it
wherever train.py lies: nothing has to be installed. Hydra runs this file before it is a module
that Python knows, so that annotations cannot be text (no `from __future__ import annotations`).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


@dataclass
class ProcessLauncherConf:
    """hydra.launcher.jobs: how many jobs run at once."""

    _target_: str = f"{__name__}.ProcessLauncher"
    jobs: int = 1


class ProcessLauncher(Launcher):
    """Runs every job as a command of its own, one after the other or several at once."""

    def __init__(self, jobs: int = 1) -> None:
        self.at_once = max(jobs, 1)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra hands to launchers; the task is train.py's, not this process's."""
        self.context, self.config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs the jobs; each returns its eval loss. SystemExit when refused or stopped."""
        from configs.errors import ConfigError
        from sweeps.job import Job
        from sweeps.processes import run_jobs
        from sweeps.results import objective

        setup_globals()
        try:
            numbered = enumerate(job_overrides, initial_job_idx)
            jobs = [Job.of(self._composed(number, words)) for number, words in numbered]
            stopped_with = run_jobs(jobs, self.at_once)
        except ConfigError as error:
            print(error.report(), file=sys.stderr)
            raise SystemExit(2) from None
        if stopped_with:
            raise SystemExit(stopped_with)
        return [_returned(job.overrides, objective(job.folder)) for job in jobs]

    def _composed(self, number: int, overrides: Sequence[str]) -> Any:
        composed = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.id = composed.hydra.job.num = number
        return composed


def _returned(overrides: Sequence[str], value: float) -> JobReturn:
    returned = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
    returned.return_value = value
    return returned


ConfigStore.instance().store(
    group="hydra/launcher", name="process", node=ProcessLauncherConf, provider="foldtext"
)
