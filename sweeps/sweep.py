"""`python train.py --multirun`: Hydra makes the jobs, a launcher runs them, a report ends it."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.compose import compose, groups, readable
from configs.convert import from_tree
from configs.directories import absolute, make_sweep_dir
from configs.errors import ConfigError, RefusedError
from configs.launch import FAILED, INTERRUPTED, REFUSED, Run, call_hydra, guarded
from configs.loading import load
from configs.overrides import Override, is_swept, prepare, quote, to_hydra, with_defaults
from sweeps.job import TRAIN, Job, register
from sweeps.processes import run_jobs
from sweeps.results import objective, read_results

_PLACE = "hydra.sweep.dir"
_STOPPED = (INTERRUPTED, 143)
_DEFAULTS = ("hydra/launcher=process", "hydra/job_logging=none", "hydra/hydra_logging=none")


def sweep(run: Run, asked: Namespace, flags: Sequence[str]) -> int:
    """Runs the jobs of a sweep; one that fails does not stop the others.

    Returns 0, 1 when jobs failed, or the code of the signal that ended it. Raises ConfigError
    before the first job for what no job could run with. `run` is for hydra/launcher=basic alone,
    which keeps all jobs in this process.
    """
    overrides = _checked(asked)
    folder = _given(overrides) or make_sweep_dir()
    told = [to_hydra(o, multirun=True) for o in overrides if o.key != _PLACE]
    told.append(f"{_PLACE}={quote(folder)}")
    in_process = any(word.removesuffix("'") == "hydra/launcher=basic" for word in told)

    def task(composed: Any) -> float:
        from hydra.core.hydra_config import HydraConfig

        job = Job.of(_WithHydra(composed, HydraConfig.get()))
        code = _in_this_process(run, job) if in_process else run_jobs([job])
        if in_process and code in _STOPPED:  # elsewhere others go on, and the launcher must know
            raise SystemExit(code)
        return objective(job.folder)

    _let_workers_import_us()
    left_with = call_hydra(task, with_defaults(told, _DEFAULTS), flags)
    results = read_results(Path(folder))
    if not results:
        return left_with
    from sweeps.report import report

    report(Path(folder), results)
    return left_with or (FAILED if any(result.exit_code for result in results) else 0)


def _let_workers_import_us() -> None:
    """Other launchers (joblib, submitit) load the task in processes that did not start train.py."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(TRAIN.parent) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(TRAIN.parent), *filter(None, known)])


class _WithHydra:
    """A job's config and Hydra's part of it, which a task gets in two pieces."""

    def __init__(self, composed: Any, hydra: Any) -> None:
        self.hydra, self.get = hydra, composed.get


def _given(overrides: Sequence[Override]) -> str | None:
    """The directory that the command names, absolute; ${now:%H-%M} is resolved once, for all."""
    value = next((o.value for o in overrides if o.key == _PLACE), None)
    if not value:
        return None
    try:
        folder = OmegaConf.create({"folder": re.sub(r"^(['\"])(.*)\1$", r"\2", value)}).folder
    except OmegaConfBaseException as error:
        raise ConfigError([f"{_PLACE}={value}: {readable(error)}"]) from None
    try:
        return absolute(folder)
    except RefusedError as refused:
        raise ConfigError([f"{_PLACE}: {refused}"]) from None


def _checked(asked: Namespace) -> list[Override]:
    """The overrides of a sweep; raises ConfigError for what is wrong with all of its jobs."""
    overrides, problems = prepare(asked.overrides, groups(asked.config_dir), multirun=True)
    fixed = [to_hydra(override) for override in overrides if not _is_free(override)]
    try:
        tree = compose(
            with_defaults(fixed, _DEFAULTS), asked.config_dir, asked.config_name or "config"
        )
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


def _is_free(override: Override) -> bool:
    return override.key == _PLACE or is_swept(override)


def _in_this_process(run: Run, job: Job) -> int:
    """Loads the job's config and runs it here; returns its exit code, which is written down."""
    (record,) = register([job])
    if record.is_done:
        return 0
    flags = dict(zip(job.flags[::2], job.flags[1::2], strict=True))
    try:
        with chdir(job.cwd):  # hydra.job.chdir must not move what paths are relative to
            config = load(
                job.words(),
                config_dir=flags.get("--config-dir"),
                config_name=flags["--config-name"],
            )
    except ConfigError as error:
        print(error.report(), file=sys.stderr, flush=True)
        with (job.folder / "train.log").open("a", encoding="utf-8") as log:
            log.write(f"{error.report()}\n")
        code = REFUSED
    else:
        code = guarded(run, config)
    record.after(0.0, code).write(job.folder)
    return code
