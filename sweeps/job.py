"""One job of a sweep: the command that runs it, and SWEEP/<job>/job.json, which says how it went.

A job is `python train.py OVERRIDES run.dir=SWEEP/<job>`, nothing more: by hand it does the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from configs.compose import HOME
from configs.directories import LONGEST_NAME
from configs.errors import ConfigError
from configs.overrides import quote

RECORD = "job.json"
TERMINAL = "terminal.log"  # what a job said that had no terminal, or no log of its own
TRAIN = HOME.parent / "train.py"


@dataclass(frozen=True)
class Job:
    """What a job is; `flags` are those of the command line that every job needs."""

    number: int
    overrides: tuple[str, ...]
    folder: Path
    mode: str
    flags: tuple[str, ...]
    cwd: Path  # where the command was given; relative paths start there

    @classmethod
    def of(cls, composed: Any) -> Job:
        """The job of a composed config, its hydra node included. Makes nothing on disk."""
        hydra = composed.hydra
        given = [s.path for s in hydra.runtime.config_sources if s.provider == "command-line"]
        flags = [word for path in given for word in ("--config-dir", path)]
        return cls(
            number=int(hydra.job.num),
            overrides=tuple(hydra.overrides.task),
            folder=Path(hydra.runtime.cwd) / hydra.sweep.dir / _flat(str(hydra.sweep.subdir)),
            mode=str(composed.get("mode")),
            flags=(*flags, "--config-name", str(hydra.job.config_name)),
            cwd=Path(hydra.runtime.cwd),
        )

    def words(self) -> list[str]:
        """The overrides of the job's own command; a training is told its directory."""
        place = [f"run.dir={quote(str(self.folder))}"] if self.mode == "train" else []
        return [*self.overrides, *place]

    def command(self) -> list[str]:
        """The command that runs the job in a process of its own."""
        return [sys.executable, "-X", "utf8", str(TRAIN), *self.flags, *self.words()]


@dataclass(frozen=True)
class Record:
    """How a job stands: no exit code means that it waits, runs, or was cut off with its machine."""

    number: int
    overrides: tuple[str, ...]
    seconds: float = 0.0
    exit_code: int | None = None

    @property
    def is_done(self) -> bool:
        return self.exit_code == 0

    def write(self, folder: Path) -> None:
        """Writes FOLDER/job.json, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f".{RECORD}.{os.getpid()}"
        new.write_text(json.dumps(asdict(self), ensure_ascii=False) + "\n", encoding="utf-8")
        new.replace(folder / RECORD)

    def after(self, seconds: float, exit_code: int | None) -> Record:
        """The record after so many more seconds of work."""
        return replace(self, seconds=self.seconds + seconds, exit_code=exit_code)


def read_record(folder: Path) -> Record | None:
    """The record in FOLDER/job.json; None where there is none that can be read."""
    try:
        fields = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return Record(**{**fields, "overrides": tuple(fields["overrides"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record_of(job: Job) -> Record:
    """The job's record, a new one for a new job.

    Raises ConfigError where another job has left its results: they would be mixed up.
    """
    known = read_record(job.folder)
    if known is None or (known.exit_code == 2 and known.overrides != job.overrides):
        return Record(job.number, job.overrides)
    if set(known.overrides) != set(job.overrides):
        raise ConfigError(
            [
                f"hydra.sweep.dir={job.folder.parent} holds another sweep: job {job.folder.name} "
                f"was {' '.join(known.overrides)}, would be {' '.join(job.overrides)}; the same "
                "overrides go on, another hydra.sweep.dir starts anew"
            ]
        )
    return known


def register(jobs: Sequence[Job]) -> list[Record]:
    """Writes down all jobs before the first runs, so that a report knows those that never ran."""
    twice = {job.folder for job in jobs if [j.folder for j in jobs].count(job.folder) > 1}
    if twice:
        shared = ", ".join(folder.name for folder in twice)
        raise ConfigError(
            [f"hydra.sweep.subdir: several jobs would share {shared}; leave it to be the number"]
        )
    records = [record_of(job) for job in jobs]
    for job, record in zip(jobs, records, strict=True):
        if not record.is_done:
            record = replace(record, exit_code=None)  # noqa: PLW2901
            record.write(job.folder)
    return records


def _flat(name: str) -> str:
    if "/" in name or name in ("", ".", "..") or len(name.encode()) > LONGEST_NAME:
        raise ConfigError(
            [
                f"hydra.sweep.subdir={name[:80]}: one directory name of at most {LONGEST_NAME} "
                "bytes, without /; leave it to be the number of the job"
            ]
        )
    return name
