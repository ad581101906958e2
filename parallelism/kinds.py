"""Kinds: parameters that one small program can draw, told apart by what the compiler sees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
    """Parameters with one shape, dtype, initializer and sharding.

    `num_stacked` is None for parameters that are one draw each, or the number of draws that each
    one stacks. `members` are in the order of the tree.
    """

    shape: tuple[int, ...]
    dtype: Any
    initializer: Initializer
    sharding: NamedSharding
    num_stacked: int | None
    members: tuple[Member, ...]

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

    @property
    def stack_sharding(self) -> NamedSharding:
        """Sharding of several parameters behind one leading, unsharded axis."""
        return NamedSharding(self.sharding.mesh, PartitionSpec(None, *self.sharding.spec))


def group_kinds(specs: Mapping[str, ParamSpec], mesh: Mesh, rules: Rules) -> list[Kind]:
    """Sorts parameters, given by path, into kinds, in the order in which they first occur.

    Raises ValueError, with the parameter's path, when the rules cannot shard it, and when two
    parameters would draw from one key.
    """
    groups: dict[Any, list[Member]] = {}
    examples: dict[Any, tuple[ParamSpec, NamedSharding]] = {}
    for path, spec in specs.items():
        sharding = _sharding(path, spec, mesh, rules)
        constant = ignores_key(spec.initializer)
        num_stacked = len(draw_ids(path, spec)) if spec.is_stacked and not constant else None
        identity = initializer_identity(spec.initializer)
        key = (spec.shape, spec.dtype, identity, sharding, num_stacked)
        draws = () if constant else tuple(draw_ids(path, spec))
        groups.setdefault(key, []).append(Member(path, draws))
        examples.setdefault(key, (spec, sharding))
    check_distinct(
        (m.path, draw) for members in groups.values() for m in members for draw in m.draws
    )
    return [
        Kind(
            shape=examples[key][0].shape,
            dtype=examples[key][0].dtype,
            initializer=examples[key][0].initializer,
            sharding=examples[key][1],
            num_stacked=key[-1],
            members=tuple(members),
        )
        for key, members in groups.items()
    ]


def _sharding(path: str, spec: ParamSpec, mesh: Mesh, rules: Rules) -> NamedSharding:
    try:
        return rules.sharding(mesh, spec.axes, spec.shape)
    except ValueError as error:
        raise ValueError(f"parameter {path!r}: {error}") from error
