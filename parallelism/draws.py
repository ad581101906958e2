"""The small compiled programs that draw the parameters of one kind.

Stage one draws several parameters of a kind behind one leading axis; stage two hands one of them
out. A kind whose piece is a single parameter, a kind of stacked layers and a kind of constants need
stage one alone. All programs draw through `draw`, element by element of one parameter at a time,
so that neither the number of parameters in a piece nor the mesh changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from parallelism.kinds import Kind, Member

MAX_PIECE = 1 << 16


def draw(kind: Kind, root: jax.Array, draw_id: jax.Array) -> jax.Array:
    """One call of the kind's initializer. `root` uint32 [2]: key data; `draw_id` uint32 [2]."""
    key = jax.random.wrap_key_data(root, impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, draw_id[0]), draw_id[1])
    return kind.initializer(key, kind.draw_shape, kind.dtype)


def draw_many(kind: Kind, root: jax.Array, draw_ids: jax.Array) -> jax.Array:
    """Several draws, one after the other, [n, *draw_shape]; `draw_ids` uint32 [n, 2]."""
    return jax.lax.map(lambda draw_id: draw(kind, root, draw_id), draw_ids)


class KindPrograms:
    """The programs of one kind: lowered at once, compiled when asked, then run with any key."""

    def __init__(self, kind: Kind, stack_bytes: int) -> None:
        self.kind = kind
        self.piece = _piece_size(kind, stack_bytes)
        self._lowered = _lower(kind, self.piece)
        self._compiled: list[Any] = []

    def compile(self) -> None:
        self._compiled = [lowered.compile() for lowered in self._lowered]

    @property
    def compiled(self) -> list[Any]:
        """The executables, stage one first; for reading their HLO and memory analysis."""
        return self._compiled

    def run(self, root: np.ndarray) -> Iterator[tuple[str, jax.Array]]:
        """Yields every parameter of the kind with its path."""
        members = self.kind.members
        for start in range(0, len(members), self.piece):
            yield from self._run_piece(root, members[start : start + self.piece])

    def _run_piece(
        self, root: np.ndarray, members: tuple[Member, ...]
    ) -> Iterator[tuple[str, jax.Array]]:
        if self.kind.ignores_key:
            yield members[0].path, self._compiled[0]()
            return
        draw_ids = np.array([m.draws for m in members], np.uint32)
        if self.piece == 1:
            ids = draw_ids[0] if self.kind.num_stacked is not None else draw_ids[0, 0]
            yield members[0].path, self._compiled[0](root, ids)
            return
        stage_one, stage_two = self._compiled
        padding = ((0, self.piece - len(members)), (0, 0))
        stack = stage_one(root, np.pad(draw_ids[:, 0], padding, mode="edge"))
        params = [stage_two(stack, np.int32(index)) for index in range(len(members))]
        jax.block_until_ready(params)  # the next stack must not be allocated beside this one
        stack.delete()
        yield from zip((m.path for m in members), params, strict=True)


def _piece_size(kind: Kind, stack_bytes: int) -> int:
    """How many parameters one run of stage one draws; pieces of a kind are as equal as can be."""
    if kind.ignores_key or kind.num_stacked is not None:
        return 1
    most = max(1, stack_bytes // max(1, kind.bytes_per_device))
    num_pieces = -(-len(kind.members) // most)
    return -(-len(kind.members) // num_pieces)


def _lower(kind: Kind, piece: int) -> list[Any]:
    root = jax.ShapeDtypeStruct((2,), np.uint32)
    if kind.ignores_key:
        fill = jax.jit(
            lambda: kind.initializer(None, kind.shape, kind.dtype), out_shardings=kind.sharding
        )
        return [fill.lower()]
    if kind.num_stacked is not None:
        ids = jax.ShapeDtypeStruct((kind.num_stacked, 2), np.uint32)
        stacked = jax.jit(lambda r, i: draw_many(kind, r, i), out_shardings=kind.sharding)
        return [stacked.lower(root, ids)]
    if piece == 1:
        ids = jax.ShapeDtypeStruct((2,), np.uint32)
        single = jax.jit(lambda r, i: draw(kind, r, i), out_shardings=kind.sharding)
        return [single.lower(root, ids)]
    ids = jax.ShapeDtypeStruct((piece, 2), np.uint32)
    stage_one = jax.jit(lambda r, i: draw_many(kind, r, i), out_shardings=kind.stack_sharding)
    stage_two = jax.jit(
        lambda stack, index: jax.lax.dynamic_index_in_dim(stack, index, keepdims=False),
        out_shardings=kind.sharding,
    )
    stack = jax.ShapeDtypeStruct((piece, *kind.shape), kind.dtype, sharding=kind.stack_sharding)
    return [stage_one.lower(root, ids), stage_two.lower(stack, np.int32(0))]
