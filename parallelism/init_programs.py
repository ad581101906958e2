"""The compiled programs that make parameters: one a kind, or one for all of them.

parallelism/shared_programs.py has those that kinds share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial

import jax
import numpy as np

from parallelism.draws import (
    KEY_DATA,
    draw,
    draw_at_once,
    draw_in_turn,
    draw_reference,
    fill,
    host_keys,
    traced_keys,
)
from parallelism.kinds import Kind, Member

Made = Iterator[tuple[str, jax.Array]]


class Programs(ABC):
    """Programs that `lower` traces and `run` runs with any key, once they are `compiled`."""

    num_programs = 1

    def __init__(self) -> None:
        self.compiled: Sequence[jax.stages.Compiled] = ()

    @abstractmethod
    def lower(self) -> Iterator[jax.stages.Lowered]:
        """Traces the programs, in the order of `compiled`.

        Raises ValueError for an initializer that gives other arrays than was asked for.
        """

    @abstractmethod
    def run(self, root: np.ndarray) -> Made:
        """Yields the parameters with their paths. `root`: key data, uint32 [2]."""


class ConstantProgram(Programs):
    """For a kind that needs no key: one program, run once for each parameter."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def lower(self) -> Iterator[jax.stages.Lowered]:
        yield jax.jit(partial(fill, self._kind), out_shardings=self._kind.sharding).lower()

    def run(self, root: np.ndarray) -> Made:
        for member in self._kind.members:
            yield member.path, self.compiled[0]()


class DrawProgram(Programs):
    """One program that draws a parameter in its own layout, run once for each parameter."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def lower(self) -> Iterator[jax.stages.Lowered]:
        make = jax.jit(partial(_make, self._kind), out_shardings=self._kind.sharding)
        yield make.lower(_keys_like(self._kind.num_stacked or 1))

    def run(self, root: np.ndarray) -> Made:
        members = self._kind.members
        keys = host_keys(root, [draw_id for member in members for draw_id in member.draws])
        for member, own_keys in zip(members, np.split(keys, len(members)), strict=True):
            yield member.path, self.compiled[0](own_keys)


class SingleGraph(Programs):
    """The reference: one program with an output for every parameter, keys and all."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        super().__init__()
        self._members = [(kind, member) for kind in kinds for member in kind.members]

    def lower(self) -> Iterator[jax.stages.Lowered]:
        def make_all(root: jax.Array) -> list[jax.Array]:
            return [_make_reference(kind, root, member) for kind, member in self._members]

        shardings = [kind.sharding for kind, _ in self._members]
        yield jax.jit(make_all, out_shardings=shardings).lower(KEY_DATA)

    def run(self, root: np.ndarray) -> Made:
        paths = (member.path for _, member in self._members)
        yield from zip(paths, self.compiled[0](root), strict=True)


def own_program(kind: Kind) -> Programs:
    """The program of a kind that shares none."""
    return ConstantProgram(kind) if kind.ignores_key else DrawProgram(kind)


def _make(kind: Kind, keys: jax.Array) -> jax.Array:
    """One parameter; `keys` uint32 [number of its draws, 2]."""
    if kind.num_stacked is None:
        return draw(kind, keys[0])
    if kind.sharding.spec[0] is not None:
        return draw_at_once(kind, keys)
    return draw_in_turn(kind, keys)


def _make_reference(kind: Kind, root: jax.Array, member: Member) -> jax.Array:
    """One parameter straight from the definition."""
    if kind.ignores_key:
        return fill(kind)
    keys = traced_keys(root, member.draws)
    draws = jax.vmap(lambda key_data: draw_reference(kind, key_data))
    return draws(keys) if kind.num_stacked is not None else draw_reference(kind, keys[0])


def _keys_like(num_draws: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_draws, 2), np.uint32)
