"""What the schema holds, seen as a flat table: `optimizer.lr` -> its type, its documentation."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from configs.keys import key_fields
from configs.schema import Config

# What other trainers call these keys: a misspelt key is often a word from elsewhere.
_OTHER_NAMES = {
    "learning_rate": "optimizer.lr",
    "max_lr": "optimizer.lr",
    "grad_clip": "optimizer.clip_norm",
    "bs": "data.batch",
    "batch_size": "data.batch",
    "global_batch_size": "data.batch",
    "max_seq_len": "data.seq_len",
    "sequence_length": "data.seq_len",
    "context_length": "data.seq_len",
    "max_steps": "train.steps",
    "num_steps": "train.steps",
    "gradient_accumulation_steps": "train.grad_accum",
    "layers": "model.num_layers",
    "nlayers": "model.num_layers",
    "heads": "model.num_heads",
    "vocab": "model.vocab_size",
    "hidden_size": "model.embed_dim",
    "output_dir": "run.dir",
    "warmup": "schedule.warmup_steps",
    "dp": "mesh.data",
    "cp": "mesh.context",
    "degree": "mesh.context",
    "ep": "mesh.expert",
    "dataset": "data",
    "save_every": "checkpoint.every",
    "tp": "mesh.tensor",
}
_DTYPES = ["model.param_dtype", "model.compute_dtype"]
_SEVERAL = {"dtype": _DTYPES, "precision": _DTYPES}


@dataclass(frozen=True)
class Leaf:
    """One key that takes a single value.

    `kind` is str, int, float or bool; a Literal is text with `choices`.
    """

    key: str
    kind: type
    optional: bool
    choices: tuple[str, ...]
    doc: str


@functools.cache
def leaves() -> dict[str, Leaf]:
    """Every settable key by its dotted name, in the order of the schema."""
    return {leaf.key: leaf for leaf in _walk(Config, "")}


@functools.cache
def sections() -> dict[str, type]:
    """The dataclass behind every dotted prefix: `model` -> ModelConfig; the root is ''."""
    return {"": Config, **dict(_sections(Config, ""))}


def below(prefix: str) -> list[str]:
    """The keys that `prefix` names: itself when it is a key, or all keys of a section."""
    return [key for key in leaves() if key == prefix or key.startswith(f"{prefix}.")]


def nearest_key(key: str, others: Iterable[str] = ()) -> str:
    """`; did you mean optimizer.lr?` for `lr`, `optimiser.lr` or `learning_rate`, or nothing."""
    found = keys_named(key, others)
    if found:
        return f"; did you mean {' or '.join(found)}?"
    return did_you_mean(key, [*others, *leaves()])


def keys_named(key: str, others: Iterable[str] = ()) -> list[str]:
    """What a word may mean: `lr` -> [optimizer.lr], `dtype` -> two keys, `xyz` -> none."""
    end = key.rsplit(".", maxsplit=1)[-1]
    names = [*leaves(), *others]
    if key in names:
        return [key]
    same_end = [name for name in leaves() if name.split(".")[-1] == end]
    if same_end or end in _SEVERAL:
        return same_end or _SEVERAL[end]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.8)
    if near:
        return near
    by_end = {name.split(".")[-1]: name for name in leaves()} | _OTHER_NAMES
    return [by_end[name] for name in difflib.get_close_matches(end, by_end, n=1, cutoff=0.7)]


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean zigzag?`, or nothing when no name is near."""
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def read(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    return functools.reduce(getattr, key.split("."), config)


def _walk(section: type, prefix: str) -> Iterator[Leaf]:
    hints = typing.get_type_hints(section)
    for field in key_fields(section):
        hint, key = hints[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hint):
            yield from _walk(typing.cast(type, hint), f"{key}.")
            continue
        optional = typing.get_origin(hint) is types.UnionType
        if optional:
            (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        yield Leaf(key, str if choices else hint, optional, choices, field.metadata["doc"])


def _sections(section: type, prefix: str) -> Iterator[tuple[str, type]]:
    for name, hint in typing.get_type_hints(section).items():
        if dataclasses.is_dataclass(hint):
            key = f"{prefix}{name}"
            yield key, typing.cast(type, hint)
            yield from _sections(typing.cast(type, hint), f"{key}.")
