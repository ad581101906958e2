"""Directories that belong to one run or one sweep."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from secrets import token_hex

from configs.errors import ConfigError, RefusedError
from configs.schema import Config

RUNS = Path("runs")
LONGEST_NAME = 255  # bytes, of one part of a path
_BEFORE_TRAINING = {".hydra", ".lock", "checkpoints", "train.log"}


def propose_dir(*parts: str) -> str:
    """A directory that nobody has: `/here/runs/<name>/2026-01-31_12-00-00-3fa2`. None is made."""
    stamp = f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{token_hex(2)}"
    return str(RUNS.joinpath(*parts, stamp).absolute())


def absolute(path: str) -> str:
    """The path from the root, ~ filled in; raises RefusedError for a name that no disk takes."""
    for part in Path(path).parts:
        if len(part.encode()) > LONGEST_NAME:
            raise RefusedError(
                f"a file name has {LONGEST_NAME} bytes at most, {part[:20]}... has "
                f"{len(part.encode())}"
            )
    return str(Path(path).expanduser().absolute())


def run_at(path: str) -> str | None:
    """The run that a path leads into, RUN, RUN/config.yaml or RUN/checkpoints/5, as it is typed."""
    here = Path(path).expanduser()
    for folder in (here, here.parent, here.parent.parent):
        if (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir():
            return str(folder)
    return None


def make_run_dir(config: Config, *, new: bool) -> Config:
    """Makes run.dir and returns the config that names it.

    A `new` one is made by this process alone: when another was faster, the next proposal is
    taken, and so it is when the run has come to another name since. Raises ConfigError where no
    directory can be made.
    """
    if new and Path(config.run.dir).parent.name != config.run.name:
        config = _with_proposal(config)
    while True:
        try:
            _make(config.run.dir, exist_ok=not new)
        except FileExistsError:
            config = _with_proposal(config)
        except OSError as error:
            raise ConfigError(
                [f"run.dir={config.run.dir} cannot be made: {error.strerror}"]
            ) from None
        else:
            return config


def _with_proposal(config: Config) -> Config:
    return replace(config, run=replace(config.run, dir=propose_dir(config.run.name)))


def remove_untrained(run_dir: str) -> None:
    """Removes a proposed run directory, and runs/<name> if that is left empty, for a refused run.

    Not where more is in it than there is before the first step.
    """
    folder = Path(run_dir)
    with contextlib.suppress(OSError):
        if {entry.name for entry in folder.iterdir()} <= _BEFORE_TRAINING:
            if any(folder.glob("checkpoints/*")):
                return
            shutil.rmtree(folder)
            for parent in (folder.parent, folder.parent.parent):
                parent.rmdir()


def make_sweep_dir() -> str:
    """Makes a directory under runs/sweeps that no other sweep has."""
    while True:
        folder = propose_dir("sweeps")
        try:
            _make(folder, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError([f"{folder} cannot be made: {error.strerror}"]) from None
        else:
            return folder


def _make(folder: str, *, exist_ok: bool) -> None:
    Path(folder).parent.mkdir(parents=True, exist_ok=True)
    Path(folder).mkdir(exist_ok=exist_ok)
