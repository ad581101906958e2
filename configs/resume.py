"""A run directory that exists already: what it lends to a new command, and what must not change.

`run.dir=RUN` is enough to go on, evaluate or generate: keys that the command does not set come
from RUN/config.yaml. What the saved state or the order of the data depends on is bound to it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.compose import compose
from configs.convert import convert
from configs.errors import ConfigError, RefusedError
from configs.fields import leaves, read
from configs.saved import NAME, read_tree
from configs.schema import Config

READS_RUN = ("eval", "generate", "export")  # modes that need a trained run

# About this command, never about the run.
_OF_THE_COMMAND = (
    "mode",
    "run.dir",
    "checkpoint.resume",
    "generate",
    "export",
    "compile_cache",
    "profile",
)
# About the devices: only another training command inherits them.
_OF_THE_MACHINE = ("mesh", "context_parallel", "attention", "init")
# What the saved state depends on, or the order of the data; but for what changes neither.
_BOUND = ("model", "adapter", "data", "seed", "optimizer.name")
_FREE = (
    "model.name",
    "model.remat",
    "model.compute_dtype",
    "data.prefetch",
    "data.eval_rows",
    "data.epochs",
    "data.token_cache",
)


@dataclass(frozen=True)
class Change:
    """A key whose value is not the one that the run was saved with."""

    key: str
    saved: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: saved {_shown(self.saved)}, now {_shown(self.now)}"


def saved_values(run_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The values in RUN/config.yaml by key, or None without that file; ConfigError if it is bad.

    Keys that the file does not have, because it is older than they are, are left out.
    """
    file = Path(run_dir) / NAME
    if not file.exists():
        return None
    values, problems = {}, []
    for key, value in _flat(read_tree(file)):
        if key not in leaves():
            problems.append(f"{file}: {key} is no key of this version")
            continue
        try:
            values[key] = convert(leaves()[key], value)
        except RefusedError as refused:
            problems.append(f"{file}: {key}={value}: {refused}")
    if problems:
        raise ConfigError(problems)
    return values


def mesh_as_asked(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """The mesh keys as the last command gave them, from what Hydra saved: -1 is still -1.

    RUN/config.yaml has the sizes that came of it, which would not fit another machine.
    """
    folder = Path(run_dir) / ".hydra"
    if not (folder / NAME).is_file():
        return {}
    try:
        tree = compose([], folder, Path(NAME).stem)
    except RefusedError:
        return {}
    mesh = _flat({"mesh": tree.get("mesh", {})})
    return {key: value for key, value in mesh if key in leaves()}


def has_checkpoints(run_dir: str | os.PathLike[str]) -> bool:
    """True when something was saved, readable or not."""
    folder = Path(run_dir) / "checkpoints"
    return folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir())


def inherited(mode: str, saved: Mapping[str, Any], explicit: Collection[str]) -> dict[str, Any]:
    """The saved values that a command takes over: all that it does not set itself.

    A command that sets any mesh axis describes the whole mesh.
    """
    own = [*_OF_THE_COMMAND]
    if mode in READS_RUN:
        own += _OF_THE_MACHINE
    elif any(_within(key, ("mesh",)) for key in explicit):
        own += ["mesh"]
    return {k: v for k, v in saved.items() if k not in explicit and not _within(k, own)}


def changes(saved: Mapping[str, Any], config: Config) -> list[Change]:
    """Every key that differs from the saved run, apart from what is about this command only."""
    return [
        Change(key, value, read(config, key))
        for key, value in saved.items()
        if not _within(key, _OF_THE_COMMAND) and read(config, key) != value
    ]


def resume_problems(saved: Mapping[str, Any], config: Config) -> list[str]:
    """One problem for every change that the saved state does not allow."""
    where = config.run.dir
    if not has_checkpoints(where):
        return []
    bound = ("model", "adapter") if config.mode in READS_RUN else _BOUND
    problems = [
        f"{change}; the checkpoints in {where} belong to the saved value, "
        "another run.dir starts anew"
        for change in changes(saved, config)
        if _within(change.key, bound) and not _within(change.key, _FREE)
    ]
    if config.mode == "train":
        problems += _schedule_problem(saved, config)
    return problems


def checkpoint_problems(config: Config) -> list[str]:
    """What checkpoint.resume forbids, given what run.dir holds."""
    resume, where = config.checkpoint.resume, config.run.dir
    if config.mode != "train":
        return []
    if resume == "never" and has_checkpoints(where):
        return [
            f"checkpoint.resume=never, but run.dir={where} holds checkpoints, which are not "
            "overwritten; another run.dir starts anew, checkpoint.resume=auto goes on"
        ]
    if resume == "required" and not has_checkpoints(where):
        return [
            f"checkpoint.resume=required, but run.dir={where} holds no checkpoint; "
            "checkpoint.resume=auto would start from step 0"
        ]
    return []


def permitted_changes(config: Config) -> list[str]:
    """What a resumed run does otherwise than the saved one, `key: saved X, now Y`, for the log."""
    saved = saved_values(config.run.dir) if has_checkpoints(config.run.dir) else None
    return [str(change) for change in changes(saved, config)] if saved else []


def _schedule_problem(saved: Mapping[str, Any], config: Config) -> list[str]:
    """Refuses another train.steps where it would silently stretch the schedule."""
    before, now = saved.get("train.steps"), config.train.steps
    stretched = config.schedule.total_steps is None and saved.get("schedule.total_steps") is None
    if not stretched or before in (None, now) or config.schedule.name == "constant":
        return []
    return [
        f"train.steps: saved {before}, now {now}; schedule.total_steps=null follows it, so the "
        f"learning rate would jump; schedule.total_steps={before} keeps the saved schedule, "
        f"schedule.total_steps={now} stretches it"
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _within(key: str, sections: Collection[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
