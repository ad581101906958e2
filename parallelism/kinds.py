"""Kinds: parameters that one small program can draw, told apart by what the compiler sees."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding

from parallelism.initializers import ignores_key, initializer_identity
from parallelism.params import DrawId, Initializer, ParamSpec, check_distinct, draw_ids
from parallelism.rules import Rules


@dataclass(frozen=True)
class Member:
    """A parameter of a kind: where it goes and what seeds its draws."""

    path: str
    draws: tuple[DrawId, ...]


@dataclass(frozen=True)
class Kind:
    """Parameters with one shape, dtype, initializer and sharding; equal when these are.

    `num_stacked` is None for parameters that are one draw each, or the number of draws that each
    one stacks. `members` are in the order of the tree. `identity` stands for the initializer.
    """

    shape: tuple[int, ...]
    dtype: Any
    identity: Hashable
    sharding: NamedSharding
    num_stacked: int | None
    initializer: Initializer = field(compare=False)
    members: tuple[Member, ...] = field(default=(), compare=False)

    @property
    def ignores_key(self) -> bool:
        return ignores_key(self.initializer)

    @property
    def draw_shape(self) -> tuple[int, ...]:
        return self.shape if self.num_stacked is None else self.shape[1:]

    @property
    def bytes_per_device(self) -> int:
        """Bytes of one parameter on one device."""
        shard = self.sharding.shard_shape(self.shape)
        return math.prod(shard) * np.dtype(self.dtype).itemsize


def group_kinds(specs: Mapping[str, ParamSpec], mesh: Mesh, rules: Rules) -> list[Kind]:
    """Sorts parameters, given by path, into kinds, in the order in which they first occur.

    Raises ValueError, with the parameter's path, when the rules cannot shard it, and when two
    parameters would draw from one key.
    """
    groups: dict[Kind, list[Member]] = {}
    for path, spec in specs.items():
        kind = _kind_of(path, spec, mesh, rules)
        draws = () if kind.ignores_key else tuple(draw_ids(path, spec))
        groups.setdefault(kind, []).append(Member(path, draws))
    every = [member for members in groups.values() for member in members]
    check_distinct((member.path, draw) for member in every for draw in member.draws)
    return [replace(kind, members=tuple(members)) for kind, members in groups.items()]


def _kind_of(path: str, spec: ParamSpec, mesh: Mesh, rules: Rules) -> Kind:
    is_stack = isinstance(spec.layers, tuple) and not ignores_key(spec.initializer)
    return Kind(
        shape=spec.shape,
        dtype=spec.dtype,
        identity=initializer_identity(spec.initializer),
        sharding=_sharding(path, spec, mesh, rules),
        num_stacked=spec.shape[0] if is_stack else None,
        initializer=spec.initializer,
    )


def _sharding(path: str, spec: ParamSpec, mesh: Mesh, rules: Rules) -> NamedSharding:
    try:
        return rules.sharding(mesh, spec.axes, spec.shape)
    except ValueError as error:
        raise ValueError(f"parameter {path!r}: {error}") from error
