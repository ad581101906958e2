"""The compiled programs that make parameters: few and small ones a kind, or one for all of them.

Stage one draws several parameters of a kind behind one leading, unsharded axis; stage two hands
them out one by one. Constants, stacked layers and parameters too large to be drawn in company need
no second stage: their one program makes the parameter itself.
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
    """Programs that `lower` traces, `compile` compiles and `run` runs with any key."""

    num_programs = 1

    def __init__(self) -> None:
        self.lowered: Sequence[jax.stages.Lowered] = ()
        self.compiled: Sequence[jax.stages.Compiled] = ()

    def lower(self) -> None:
        """Traces the programs; raises ValueError for an initializer that gives other arrays."""
        self.lowered = self._lower()

    def compile(self) -> None:
        self.compiled = [program.compile() for program in self.lowered]

    @abstractmethod
    def run(self, root: np.ndarray) -> Made:
        """Yields the parameters with their paths. `root`: key data, uint32 [2]."""

    @abstractmethod
    def _lower(self) -> Sequence[jax.stages.Lowered]: ...


class ConstantProgram(Programs):
    """For a kind that needs no key: one program, run once for each parameter."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def _lower(self) -> Sequence[jax.stages.Lowered]:
        return [jax.jit(partial(fill, self._kind), out_shardings=self._kind.sharding).lower()]

    def run(self, root: np.ndarray) -> Made:
        for member in self._kind.members:
            yield member.path, self.compiled[0]()


class DrawProgram(Programs):
    """One program that draws a parameter in its own layout, run once for each parameter."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def _lower(self) -> Sequence[jax.stages.Lowered]:
        make = jax.jit(partial(_make, self._kind), out_shardings=self._kind.sharding)
        return [make.lower(_keys_like(self._kind.num_stacked or 1))]

    def run(self, root: np.ndarray) -> Made:
        members = self._kind.members
        keys = host_keys(root, [draw_id for member in members for draw_id in member.draws])
        for member, own_keys in zip(members, np.split(keys, len(members)), strict=True):
            yield member.path, self.compiled[0](own_keys)


class StackPrograms(Programs):
    """Stage one draws `piece` parameters behind one axis, stage two takes each out of the stack."""

    num_programs = 2

    def __init__(self, kind: Kind, piece: int) -> None:
        super().__init__()
        self._kind = kind
        self._piece = piece

    def _lower(self) -> Sequence[jax.stages.Lowered]:
        kind = self._kind
        stage_one = jax.jit(partial(draw_in_turn, kind), out_shardings=kind.stack_sharding)
        stage_two = jax.jit(_take, out_shardings=kind.sharding)
        stack = jax.ShapeDtypeStruct(
            (self._piece, *kind.shape), kind.dtype, sharding=kind.stack_sharding
        )
        index = jax.ShapeDtypeStruct((), np.int32)
        return [stage_one.lower(_keys_like(self._piece)), stage_two.lower(stack, index)]

    def run(self, root: np.ndarray) -> Made:
        members = self._kind.members
        for start in range(0, len(members), self._piece):
            yield from self._run_piece(root, members[start : start + self._piece])

    def _run_piece(self, root: np.ndarray, members: Sequence[Member]) -> Made:
        stage_one, stage_two = self.compiled
        keys = np.zeros((self._piece, 2), np.uint32)
        keys[: len(members)] = host_keys(root, [member.draws[0] for member in members])
        stack = stage_one(keys)
        arrays = [stage_two(stack, np.int32(index)) for index in range(len(members))]
        jax.block_until_ready(arrays)  # or the next stack would be allocated beside this one
        stack.delete()
        yield from zip((member.path for member in members), arrays, strict=True)


class SingleGraph(Programs):
    """The reference: one program with an output for every parameter, keys and all."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        super().__init__()
        self._members = [(kind, member) for kind in kinds for member in kind.members]

    def _lower(self) -> Sequence[jax.stages.Lowered]:
        def make_all(root: jax.Array) -> list[jax.Array]:
            return [_make_reference(kind, root, member) for kind, member in self._members]

        shardings = [kind.sharding for kind, _ in self._members]
        return [jax.jit(make_all, out_shardings=shardings).lower(KEY_DATA)]

    def run(self, root: np.ndarray) -> Made:
        paths = (member.path for _, member in self._members)
        yield from zip(paths, self.compiled[0](root), strict=True)


def kind_programs(kind: Kind, stack_bytes: int) -> Programs:
    """Chooses the programs of a kind; a stack takes at most `stack_bytes` on each device."""
    if kind.ignores_key:
        return ConstantProgram(kind)
    piece = _piece_size(len(kind.members), stack_bytes // max(1, kind.bytes_per_device))
    if kind.num_stacked is not None or piece == 1:
        return DrawProgram(kind)
    return StackPrograms(kind, piece)


def _piece_size(num_members: int, most: int) -> int:
    """Size of the fewest, most even pieces of at most `most` each: 9 by 4 -> 3 (3 + 3 + 3)."""
    num_pieces = -(-num_members // max(1, most))
    return -(-num_members // num_pieces)


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


def _take(stack: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stack, index, keepdims=False)


def _keys_like(num_draws: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_draws, 2), np.uint32)
