"""The compiled programs that make parameters: few and small ones a kind, or one for all of them.

Stage one draws several parameters of a kind behind one leading, unsharded axis; stage two hands
them out one by one. Constants, stacked layers and parameters too large to be drawn in company need
no second stage: their one program makes the parameter itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from parallelism.draws import KEY_DATA, draw, draw_at_once, draw_in_turn, fill, id_array
from parallelism.kinds import Kind, Member

Made = Iterator[tuple[str, jax.Array]]


class Programs:
    """Programs that are lowered by the constructor, then compiled, then run with any key."""

    def __init__(self, lowered: Sequence[jax.stages.Lowered]) -> None:
        self._lowered = lowered
        self.compiled: list[jax.stages.Compiled] = []

    def compile(self) -> None:
        self.compiled = [lowered.compile() for lowered in self._lowered]

    def run(self, root: np.ndarray) -> Made:
        """Yields the parameters with their paths. `root`: key data, uint32 [2]."""
        raise NotImplementedError


class ConstantProgram(Programs):
    """For a kind that needs no key: one program, run once for each parameter."""

    def __init__(self, kind: Kind) -> None:
        self._members = kind.members
        super().__init__([jax.jit(partial(fill, kind), out_shardings=kind.sharding).lower()])

    def run(self, root: np.ndarray) -> Made:
        for member in self._members:
            yield member.path, self.compiled[0]()


class DrawProgram(Programs):
    """One program that draws a parameter in its own layout, run once for each parameter."""

    def __init__(self, kind: Kind) -> None:
        self._members = kind.members
        make = jax.jit(partial(_make, kind), out_shardings=kind.sharding)
        super().__init__([make.lower(KEY_DATA, _ids_like(kind.num_stacked or 1))])

    def run(self, root: np.ndarray) -> Made:
        for member in self._members:
            yield member.path, self.compiled[0](root, id_array(member.draws))


class StackPrograms(Programs):
    """Stage one draws `piece` parameters behind one axis, stage two takes each out of the stack."""

    def __init__(self, kind: Kind, piece: int) -> None:
        self._members = kind.members
        self._piece = piece
        stage_one = jax.jit(partial(draw_in_turn, kind), out_shardings=kind.stack_sharding)
        stage_two = jax.jit(_take, out_shardings=kind.sharding)
        stack = jax.ShapeDtypeStruct((piece, *kind.shape), kind.dtype, sharding=kind.stack_sharding)
        count = jax.ShapeDtypeStruct((), np.int32)
        super().__init__(
            [stage_one.lower(KEY_DATA, _ids_like(piece), count), stage_two.lower(stack, count)]
        )

    def run(self, root: np.ndarray) -> Made:
        for start in range(0, len(self._members), self._piece):
            yield from self._run_piece(root, self._members[start : start + self._piece])

    def _run_piece(self, root: np.ndarray, members: Sequence[Member]) -> Made:
        stage_one, stage_two = self.compiled
        draw_ids = np.zeros((self._piece, 2), np.uint32)
        draw_ids[: len(members)] = id_array([member.draws[0] for member in members])
        stack = stage_one(root, draw_ids, np.int32(len(members)))
        arrays = [stage_two(stack, np.int32(index)) for index in range(len(members))]
        jax.block_until_ready(arrays)  # or the next stack would be allocated beside this one
        stack.delete()
        yield from zip((member.path for member in members), arrays, strict=True)


class SingleGraph(Programs):
    """The reference: one program with an output for every parameter."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        members = [(kind, member) for kind in kinds for member in kind.members]
        self._paths = [member.path for _, member in members]

        def make_all(root: jax.Array) -> list[jax.Array]:
            return [_make_one(kind, root, member) for kind, member in members]

        shardings = [kind.sharding for kind, _ in members]
        super().__init__([jax.jit(make_all, out_shardings=shardings).lower(KEY_DATA)])

    def run(self, root: np.ndarray) -> Made:
        yield from zip(self._paths, self.compiled[0](root), strict=True)


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


def _make(kind: Kind, root: jax.Array, draw_ids: jax.Array) -> jax.Array:
    """One parameter; `draw_ids` uint32 [number of its draws, 2]."""
    if kind.num_stacked is None:
        return draw(kind, root, draw_ids[0])
    if kind.sharding.spec[0] is not None:
        return draw_at_once(kind, root, draw_ids)
    return draw_in_turn(kind, root, draw_ids, jnp.int32(kind.num_stacked))


def _make_one(kind: Kind, root: jax.Array, member: Member) -> jax.Array:
    """One parameter as the reference makes it: straight from the definition."""
    if kind.ignores_key:
        return fill(kind)
    draw_ids = jnp.asarray(id_array(member.draws))
    return (
        draw(kind, root, draw_ids[0])
        if kind.num_stacked is None
        else draw_at_once(kind, root, draw_ids)
    )


def _take(stack: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stack, index, keepdims=False)


def _ids_like(num_draws: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_draws, 2), np.uint32)
