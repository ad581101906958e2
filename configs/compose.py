"""From overrides to a plain tree of values: Hydra composes the YAML groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.errors import RefusedError
from configs.plugins import missing_plugin

HOME = Path(__file__).resolve().parent


def compose(
    overrides: Sequence[str], config_dir: str | os.PathLike[str] | None, config_name: str
) -> dict[str, Any]:
    """Composes overrides that Hydra reads and returns the resolved values as a nested dict.

    A value that cannot be resolved is a RefusedError in the tree. Raises RefusedError where Hydra
    cannot compose at all.
    """
    import hydra
    from hydra.errors import HydraException

    main, *others = search_path(config_dir)
    if not Path(main).is_dir():
        raise RefusedError(f"--config-dir: there is no folder {main}")
    if config_dir is not None and not (Path(main) / f"{config_name}.yaml").is_file():
        main, others = str(HOME), [main]
    if others:
        paths = ",".join(f"'file://{path}'" for path in others)
        overrides = [*overrides, f"hydra.searchpath=[{paths}]"]
    try:
        with _own_hydra(), hydra.initialize_config_dir(main, version_base="1.3"):
            composed = hydra.compose(config_name, list(overrides))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise RefusedError(readable(error)) from error
    return _resolved(composed)


def search_path(config_dir: str | os.PathLike[str] | None) -> list[str]:
    """The folders with YAML groups, first come first searched."""
    own = [] if config_dir is None else [str(Path(config_dir).expanduser().resolve())]
    return [*own, str(HOME)]


def groups(config_dir: str | os.PathLike[str] | None) -> dict[str, list[str]]:
    """Every config group with its options: `mesh` -> [auto, long_context, ...]."""
    found: dict[str, set[str]] = {}
    for folder in map(Path, search_path(config_dir)):
        for file in folder.glob("*/**/*.yaml"):
            group, *option = file.relative_to(folder).with_suffix("").parts
            if not file.name.startswith("_"):  # a base that options share
                found.setdefault(group, set()).add("/".join(option))
    return {group: sorted(options) for group, options in sorted(found.items())}


def keys_of_option(group: str, option: str, config_dir: str | os.PathLike[str] | None) -> set[str]:
    """The keys that a group option sets to values of its own, those of its defaults included."""
    files = [Path(folder) / group / f"{option}.yaml" for folder in search_path(config_dir)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return set()
    text = file.read_text(encoding="utf-8")
    tree = yaml.safe_load(text) or {}
    keys: set[str] = set()
    for default in tree.pop("defaults", []):
        if isinstance(default, str) and default != "_self_":
            keys |= keys_of_option(group, default, config_dir)
        for name, chosen in default.items() if isinstance(default, dict) else ():
            keys |= keys_of_option(name.removeprefix("override ").strip("/ "), chosen, config_dir)
    return keys | set(_own_keys(tree, "" if "@package _global_" in text else f"{group}."))


def _own_keys(tree: dict[str, Any], prefix: str) -> Iterator[str]:
    """Keys with values; an interpolation follows other keys, so that it is not a choice."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _own_keys(value, f"{prefix}{name}.")
        elif not (isinstance(value, str) and "${" in value):
            yield f"{prefix}{name}"


def readable(error: BaseException) -> str:
    """What Hydra or OmegaConf has to say, on one line, with a hint where quoting is the matter."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = "; ".join(line for line in lines if line and not set(line) <= set("^~ "))
    text = re.sub(r";? (full_key|object_type|reference_type|Config search path)[:=].*", "", text)
    text, is_syntax, _ = text.partition("; See https://hydra.cc/")
    text = re.sub(r"([.:]); ", r"\1 ", text)
    missing = missing_plugin(text)
    if missing:
        return missing
    if "Interpolation key" in text or "merging override" in text:
        text += "; \\${ stands for ${ itself"
    if is_syntax:
        text += "; put a value with = , ( ) { } or quotes in quotes twice: 'key=\"value\"'"
    return text


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Lets a config be composed while Hydra runs a job, which it does not allow by itself."""
    from hydra.core.global_hydra import GlobalHydra

    outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer


def _resolved(node: DictConfig) -> dict[str, Any]:
    """The values with interpolations filled in, key by key, so that one failure hides no other."""
    tree: dict[str, Any] = {}
    for key in node:
        name = str(key)
        try:
            value = node[key]
            plain = isinstance(value, DictConfig)
            tree[name] = (
                _resolved(value)
                if plain
                else OmegaConf.to_object(value)
                if OmegaConf.is_config(value)
                else value
            )
        except OmegaConfBaseException as error:
            tree[name] = RefusedError(readable(error))
    return tree


def _rest(*others: Any) -> int:
    """-1 (what is left), or 1 when another axis is to take what is left."""
    return 1 if any(str(other).strip() == "-1" for other in others) else -1


def _warmup(total_steps: Any, steps: Any) -> int:
    """A tenth of the schedule, 20 steps at most. Values that are no numbers are refused later."""
    total = steps if total_steps is None else total_steps
    return max(0, min(20, total // 10)) if isinstance(total, int) else 0


def _times(value: Any, numerator: int, denominator: int = 1) -> int:
    """value * numerator / denominator, rounded down, at least 1: a width that follows another."""
    return max(1, value * numerator // denominator) if isinstance(value, int) else 1


def _token_steps(model: Any, batch: Any, seq_len: Any, per_parameter: int) -> int:
    """Steps that see so many tokens per parameter of a dense model (20: arXiv 2203.15556)."""
    try:
        heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
        layer = model.embed_dim * (heads + 3 * model.mlp_dim)
        tables = model.vocab_size * model.embed_dim * (1 if model.tie_embeddings else 2)
        parameters = model.num_layers * layer + tables
        return max(1, round(per_parameter * parameters / (batch * seq_len)))
    except (TypeError, ZeroDivisionError):
        return 1


OmegaConf.register_new_resolver("foldtext.times", _times, replace=True)
OmegaConf.register_new_resolver("foldtext.token_steps", _token_steps, replace=True)
OmegaConf.register_new_resolver("foldtext.rest", _rest, replace=True)
OmegaConf.register_new_resolver("foldtext.warmup", _warmup, replace=True)
