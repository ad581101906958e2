"""From what a user typed to a `Config`, or to the list of everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.compose import compose, groups, keys_of_option
from configs.convert import from_tree
from configs.directories import absolute, propose_dir
from configs.errors import ConfigError, RefusedError
from configs.overrides import Override, assign, options, prepare, to_hydra, touched
from configs.resume import (
    READS_RUN,
    checkpoint_problems,
    inherited,
    mesh_as_asked,
    resume_problems,
    saved_values,
)
from configs.saved import NAME
from configs.schema import Asked, Config
from configs.validate import validate

_PATHS = (
    "run.dir",
    "data.path",
    "data.tokenizer",
    "data.token_cache",
    "data.chat_template",
    "init.from_hf",
    "generate.prompts",
    "export.path",
    "compile_cache",
)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True)
class Loaded:
    """A config, and how it came about.

    `overrides` make Hydra compose the same config, but for run.dir; `inherited` are those of
    them that the command did not give, but the run that it points at.
    """

    config: Config
    overrides: list[str]
    inherited: list[str]
    run_dir_is_given: bool


def load(
    overrides: Sequence[str] = (),
    *,
    config_dir: str | os.PathLike[str] | None = None,
    config_name: str = "config",
) -> Config:
    """Composes, converts and checks a configuration, without JAX and in well under a second.

    Keys that are not set come from run.dir/config.yaml, where there is one. `config_dir` is
    searched before the configs of FoldText, as with Hydra's --config-dir. Paths come back
    absolute. Raises ConfigError, whose `problems` lists all that is wrong.
    """
    return load_with_overrides(overrides, config_dir, config_name).config


def load_with_overrides(
    overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, config_name: str
) -> Loaded:
    """`load`, for a caller who will have Hydra compose the config once more."""
    known = groups(config_dir)
    good, problems = prepare(overrides, known)
    told = [to_hydra(override) for override in good]
    try:
        tree = compose(told, config_dir, config_name)
    except RefusedError as refused:
        raise ConfigError([*problems, str(refused)]) from None
    _make_absolute(tree)
    saved, missing = _saved_run(tree)
    problems += missing
    run_dir_is_given = get(tree, "run.dir") is not None
    lent = {**saved, **mesh_as_asked(get(tree, "run.dir"))} if saved else {}
    explicit = _explicit(good, known, config_dir)
    taken = inherited(str(get(tree, "mode")), lent, explicit)
    taken = {key: value for key, value in taken.items() if _put(tree, key, value)}
    _choose_run_dir(tree)
    brought = _tokenizer_of_folder(tree)
    config, wrong = from_tree(tree)
    config = replace(config, asked=_asked(good, explicit, saved or {}))
    model_is_known = config.init.from_hf is None
    problems += [*wrong.values(), *validate(config, wrong, model_is_known=model_is_known)]
    if not wrong:
        problems += [*checkpoint_problems(config), *resume_problems(saved or {}, config)]
    if problems:
        raise ConfigError(problems)
    told = [text for text, override in zip(told, good, strict=True) if override.key != "run.dir"]
    assigned = [assign(key, value) for key, value in taken.items()]
    told += [assign(key, value) for key, value in brought.items()]
    return Loaded(config, [*told, *assigned], assigned, run_dir_is_given)


def get(tree: Any, key: str) -> Any:
    """The value of a dotted key in a nested mapping, or None."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _explicit(
    overrides: Iterable[Override], known: dict[str, list[str]], config_dir: Any
) -> set[str]:
    """The keys that the command sets, itself or by choosing an option of a group."""
    keys: set[str] = set()
    for override in overrides:
        if override.group in known:
            for option in options(override):
                keys |= keys_of_option(override.group, option, config_dir)
        else:
            keys.update(touched(override))
    return keys


def _asked(overrides: Iterable[Override], explicit: set[str], saved: dict[str, Any]) -> Asked:
    """The keys of the model that the command sets, and whether something names the whole model."""
    own = {override.group for override in overrides}
    named = "model" in own or "model.name" in explicit - own or "model.name" in saved
    return Asked(
        frozenset(key for key in explicit if key.startswith("model.")),
        is_whole=named,
        names_run="run.name" in explicit or "run.name" in saved,
    )


def _saved_run(tree: dict[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """The saved values of the run that the command points at, and what is wrong with them."""
    mode, run_dir = get(tree, "mode"), get(tree, "run.dir")
    if run_dir is None and mode in READS_RUN and get(tree, "init.from_hf") is None:
        return None, [
            f"run.dir=null: mode={mode} needs a trained run; run.dir=RUN, or init.from_hf=FOLDER"
        ]
    if not isinstance(run_dir, str) or not run_dir or get(tree, "checkpoint.resume") == "never":
        return None, []
    try:
        saved = saved_values(run_dir)
    except ConfigError as error:
        return None, error.problems
    if saved is None and mode in READS_RUN:
        return None, [f"run.dir={run_dir}: mode={mode} needs a trained run, but no {NAME} is there"]
    return saved, []


def _choose_run_dir(tree: dict[str, Any]) -> None:
    name = get(tree, "run.name")
    if get(tree, "run.dir") is None:
        _put(tree, "run.dir", propose_dir(name if isinstance(name, str) else "unnamed"))


def _tokenizer_of_folder(tree: dict[str, Any]) -> dict[str, Any]:
    """Sets data.tokenizer, where it is null and text is read, to that of init.from_hf."""
    folder, key = get(tree, "init.from_hf"), "data.tokenizer"
    without_text = get(tree, "data.source") in ("synthetic", "tokens")
    if not isinstance(folder, str) or without_text or get(tree, key) is not None:
        return {}
    if not any((Path(folder) / name).is_file() for name in _TOKENIZERS):
        return {}
    _put(tree, key, folder)
    return {key: folder}


def _make_absolute(tree: dict[str, Any]) -> None:
    for key in _PATHS:
        path = get(tree, key)
        if isinstance(path, str) and path.strip():
            try:
                _put(tree, key, absolute(path))
            except RefusedError as refused:
                _put(tree, key, refused)


def _put(tree: dict[str, Any], key: str, value: Any) -> bool:
    """Sets a dotted key; returns whether that is a change."""
    *path, name = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    changed = name not in tree or tree[name] != value
    tree[name] = value
    return changed
