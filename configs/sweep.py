"""--multirun: one run directory for every job, and a verdict on each."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.compose import compose, groups
from configs.convert import from_tree
from configs.directories import make_sweep_dir
from configs.errors import ConfigError, RefusedError
from configs.launch import FAILED, INTERRUPTED, REFUSED, Run, call_hydra, guarded
from configs.loading import load
from configs.overrides import Override, is_swept, prepare, quote, to_hydra, with_defaults

_STOPPED = (INTERRUPTED, 143)


@dataclass(frozen=True)
class _Job:
    number: int
    overrides: str
    code: int


def sweep(run: Run, asked: Namespace, flags: Sequence[str]) -> int:
    """Runs the jobs of a sweep one after the other; one that fails does not stop the others.

    Returns 0, 1 when jobs failed, or the code of the signal that ended it. Raises ConfigError
    before the first job for what no job could run with.
    """
    overrides = _checked(asked)
    told = [to_hydra(override, multirun=True) for override in overrides]
    folder = next((o.value for o in overrides if o.key == "hydra.sweep.dir"), None)
    if folder is None:
        folder = make_sweep_dir()
        told.append(f"hydra.sweep.dir={quote(folder)}")
    jobs: list[_Job] = []

    def task(composed: Any) -> None:
        jobs.append(_run_job(run, asked, str(composed.get("mode"))))
        if jobs[-1].code in _STOPPED:
            raise SystemExit(jobs[-1].code)

    left_with = call_hydra(task, with_defaults(told, ["hydra/job_logging=none"]), flags)
    if jobs:
        print(_verdict(jobs, folder))
    return left_with or (FAILED if any(job.code for job in jobs) else 0)


def _checked(asked: Namespace) -> list[Override]:
    """The overrides of a sweep; raises ConfigError for what is wrong with all of its jobs."""
    overrides, problems = prepare(asked.overrides, groups(asked.config_dir), multirun=True)
    fixed = [to_hydra(override) for override in overrides if not is_swept(override)]
    try:
        tree = compose(fixed, asked.config_dir, asked.config_name or "config")
    except RefusedError as refused:
        raise ConfigError([*problems, str(refused)]) from None
    wrong = from_tree(tree)[1]
    problems += [problem for key, problem in wrong.items() if key != "run.dir"]
    if tree.get("mode") == "train" and any(o.key == "run.dir" for o in overrides):
        problems.append(
            "run.dir: every job of a sweep has its own directory; hydra.sweep.dir=DIR says where"
        )
    if problems:
        raise ConfigError(problems)
    return overrides


def _run_job(run: Run, asked: Namespace, mode: str) -> _Job:
    """Loads the config of the job that Hydra has started, and runs it."""
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    overrides, folder = list(job.overrides.task), Path(job.runtime.output_dir)
    shown = " ".join(overrides)
    if mode == "train":
        overrides.append(f"run.dir={quote(str(folder))}")
    try:
        with chdir(job.runtime.cwd):  # hydra.job.chdir must not move what paths are relative to
            config = load(
                overrides, config_dir=asked.config_dir, config_name=asked.config_name or "config"
            )
    except ConfigError as error:
        print(error.report(), file=sys.stderr, flush=True)
        with (folder / "train.log").open("a", encoding="utf-8") as log:
            log.write(f"{error.report()}\n")
        return _Job(int(job.job.num), shown, REFUSED)
    return _Job(int(job.job.num), shown, guarded(run, config))


def _verdict(jobs: Sequence[_Job], folder: str) -> str:
    """`2 of 3 jobs are done, in DIR`, and a line for each that is not."""
    failed = [job for job in jobs if job.code]
    lines = [f"{len(jobs) - len(failed)} of {len(jobs)} jobs are done, in {folder}"]
    lines += [f"  job {job.number} ({job.overrides}): exit code {job.code}" for job in failed]
    return "\n".join(lines)
