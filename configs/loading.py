"""From what a user typed to a `Config`, or to the list of everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from configs.compose import compose, groups
from configs.convert import from_tree
from configs.errors import ConfigError, RefusedError
from configs.overrides import prepare, to_hydra
from configs.schema import Config
from configs.validate import validate

_PATHS = ("run.dir", "data.path", "compile_cache")


def load(
    overrides: Sequence[str] = (),
    *,
    config_dir: str | os.PathLike[str] | None = None,
    config_name: str = "config",
) -> Config:
    """Composes, converts and checks a configuration, without JAX and in well under a second.

    `config_dir` is searched before the configs of FoldText, as with Hydra's --config-dir.
    Paths come back absolute. Raises ConfigError, whose `problems` lists all that is wrong.
    """
    good, problems = prepare(overrides, groups(config_dir))
    try:
        tree = compose([to_hydra(override) for override in good], config_dir, config_name)
    except RefusedError as refused:
        raise ConfigError([*problems, str(refused)]) from None
    _place(tree)
    config, wrong = from_tree(tree)
    problems += [*wrong.values(), *validate(config, wrong)]
    if problems:
        raise ConfigError(problems)
    return config


def propose_dir(name: str) -> str:
    """A directory that no run has: `runs/<name>/2026-01-31_12-00-00-3fa2`. Nothing is made."""
    return str(Path("runs") / name / f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{token_hex(2)}")


def _place(tree: dict[str, Any]) -> None:
    """Fills in a run directory where none is given, and makes paths absolute."""
    run = tree.get("run")
    if isinstance(run, dict) and run.get("dir", "") is None and isinstance(run.get("name"), str):
        run["dir"] = propose_dir(run["name"])
    for key in _PATHS:
        *path, name = key.split(".")
        section: Any = tree
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(section.get(name), str) and section[name]:
            section[name] = str(Path(section[name]).expanduser().absolute())
