"""Programs that kinds share: one an initializer and one a shape, in place of one for each pair.

Every device holds one row of memory, as long as the largest shard. Stage one draws a parameter's
shard into it, piece by piece, or fills it with a number: one program an initializer, which is told
by numbers whose elements to draw. Stage two gives the row's elements a parameter's shape: one
program a shape and sharding, for drawn parameters and constants alike.
"""

# W devices, R levels of a shard's order (parallelism/shard_order.py)

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from parallelism.draws import host_keys
from parallelism.elementwise import elementwise_trace
from parallelism.init_programs import Made, Programs
from parallelism.initializers import constant_value
from parallelism.kinds import Kind
from parallelism.params import Initializer
from parallelism.shard_order import MAX_SHARD, ShardOrder, shard_order
from parallelism.threefry import piece_key

# Elements drawn at a time: so few that a TPU's compiler need not write out many registers, and so
# many that a GPU, for which each is a launch, hardly notices.
_PIECE = {"tpu": 1 << 14, "cpu": 1 << 16}
_PIECE_ELSEWHERE = 1 << 20
_FEWEST_KINDS = 3  # for two, a row with its filling and two shapes cost as much as two programs

Form = tuple[tuple[int, ...], NamedSharding]


class SharedPrograms(Programs):
    """Programs for drawn kinds of one dtype, and for constants of the same forms."""

    def __init__(self, drawn: Sequence[Kind], constants: Sequence[Kind], piece: int) -> None:
        super().__init__()
        self.kinds = [*drawn, *constants]
        self._drawn, self._constants = drawn, constants
        self._mesh, self._dtype = drawn[0].sharding.mesh, drawn[0].dtype
        self._initializers = {kind.identity: kind.initializer for kind in drawn}
        self._orders = {_form(kind): shard_order(kind.shape, kind.sharding) for kind in drawn}
        self._num_levels = max(len(order.levels) for order in self._orders.values())
        largest = max(order.num_elements for order in self._orders.values())
        self._piece = piece
        self._row_size = _rounded_up(largest, self._piece)
        self._forms = list(dict.fromkeys(map(_form, self.kinds)))
        self.num_programs = 1 + len(self._initializers) + len(self._forms)

    def lower(self) -> Iterator[jax.stages.Lowered]:
        split = NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))
        size = self._mesh.size
        rows = jax.ShapeDtypeStruct((size * self._row_size,), self._dtype, sharding=split)
        places = jax.ShapeDtypeStruct((size, 2 + 2 * self._num_levels), np.uint32, sharding=split)
        key = jax.ShapeDtypeStruct((2,), np.uint32)
        for initializer in self._initializers.values():
            yield self._drawing(initializer).lower(rows, places, key)
        for form in self._forms:
            yield self._shaping(*form).lower(rows)
        fill = jax.jit(lambda value: jnp.full(rows.shape, value), out_shardings=split)
        yield fill.lower(jax.ShapeDtypeStruct((), self._dtype))

    def run(self, root: np.ndarray) -> Made:
        *others, fill = self.compiled
        draws = dict(zip(self._initializers, others, strict=False))
        shapes = dict(zip(self._forms, others[len(draws) :], strict=True))
        row = fill(np.zeros((), self._dtype))
        for kind in self._drawn:
            place = self._place(self._orders[_form(kind)])
            keys = host_keys(root, [member.draws[0] for member in kind.members])
            for member, key in zip(kind.members, keys, strict=True):
                row = draws[kind.identity](row, place, key)
                yield member.path, shapes[_form(kind)](row)
        for kind in self._constants:
            row.delete()
            row = fill(np.asarray(constant_value(kind.initializer), self._dtype))
            for member in kind.members:
                yield member.path, shapes[_form(kind)](row)
        row.delete()

    def _drawing(self, initializer: Initializer) -> Any:
        """(rows [W * row], places [W, 2 + 2 R], key) -> the rows, with a shard drawn into each."""
        piece, dtype = self._piece, self._dtype

        def draw_shard(row: jax.Array, places: jax.Array, key: jax.Array) -> jax.Array:
            place = places[0]

            def draw_piece(index: jax.Array, row: jax.Array) -> jax.Array:
                start = index.astype(np.uint32) * np.uint32(piece)
                values = initializer(piece_key(key, place, start), (piece,), dtype)
                return jax.lax.dynamic_update_slice(row, values, (index * piece,))

            return jax.lax.fori_loop(0, place[0].astype(np.int32), draw_piece, row)

        split = PartitionSpec(self._mesh.axis_names)
        on_each = jax.shard_map(
            draw_shard,
            mesh=self._mesh,
            in_specs=(split, split, PartitionSpec()),
            out_specs=split,
            check_vma=False,
        )
        return jax.jit(on_each, donate_argnums=0)

    def _shaping(self, shape: tuple[int, ...], sharding: NamedSharding) -> Any:
        """rows [W * row] -> a parameter of the rows' first elements."""
        shard = sharding.shard_shape(shape)
        on_each = jax.shard_map(
            lambda row: row[: math.prod(shard)].reshape(shard),
            mesh=self._mesh,
            in_specs=PartitionSpec(self._mesh.axis_names),
            out_specs=sharding.spec,
            check_vma=False,
        )
        return jax.jit(on_each, out_shardings=sharding)

    def _place(self, order: ShardOrder) -> jax.Array:
        rows = order.rows(self._num_levels, self._piece)
        split = NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))
        return jax.make_array_from_callback(rows.shape, split, lambda index: rows[index])


def share(kinds: Sequence[Kind], stack_bytes: int) -> list[SharedPrograms]:
    """The shared programs of those kinds for which that is cheaper; a row has `stack_bytes`.

    Kinds are shared whose initializer draws several of them in one dtype, each element by itself,
    and the constants that can use their row and its shapes.
    """
    by_dtype: dict[Any, list[Kind]] = {}
    for kind in _of_many([kind for kind in kinds if _fits(kind, stack_bytes)]):
        by_dtype.setdefault(kind.dtype, []).append(kind)
    shared = []
    for alike in by_dtype.values():
        piece = _piece_size(alike)
        if drawn := _of_many(_drawn_in_pieces(alike, piece)):
            shared.append(SharedPrograms(drawn, _alike(kinds, drawn), piece))
    return shared


def _fits(kind: Kind, stack_bytes: int) -> bool:
    size = math.prod(kind.shape)
    return (
        not kind.ignores_key
        and kind.num_stacked is None
        and 0 < size <= 2**32
        and kind.bytes_per_device <= stack_bytes
        and math.prod(kind.sharding.shard_shape(kind.shape)) < MAX_SHARD - _PIECE_ELSEWHERE
    )


def _of_many(kinds: Sequence[Kind]) -> list[Kind]:
    """Those whose initializer draws enough of them in their dtype."""
    users = Counter((kind.identity, kind.dtype) for kind in kinds)
    return [kind for kind in kinds if users[kind.identity, kind.dtype] >= _FEWEST_KINDS]


def _piece_size(kinds: Sequence[Kind]) -> int:
    platform = kinds[0].sharding.mesh.devices.flat[0].platform
    largest = max(math.prod(kind.sharding.shard_shape(kind.shape)) for kind in kinds)
    return min(_PIECE.get(platform, _PIECE_ELSEWHERE), _rounded_up(largest, 1024))


def _drawn_in_pieces(kinds: Sequence[Kind], piece: int) -> list[Kind]:
    """Those whose elements have the same values when they are drawn as parts of pieces."""
    initializers = {kind.identity: kind.initializer for kind in kinds}
    of_pieces = {
        identity: elementwise_trace(initializer, (piece,), kinds[0].dtype)
        for identity, initializer in initializers.items()
    }
    return [
        kind
        for kind in kinds
        if (own := elementwise_trace(kind.initializer, kind.shape, kind.dtype)) is not None
        and own == of_pieces[kind.identity]
    ]


def _alike(kinds: Sequence[Kind], drawn: Sequence[Kind]) -> list[Kind]:
    """Constants of a form that is drawn, or that several of them have, if it fits into the row."""
    constants = [kind for kind in kinds if kind.ignores_key and kind.dtype == drawn[0].dtype]
    uses = Counter(map(_form, constants))
    drawn_forms = set(map(_form, drawn))
    most = max(kind.bytes_per_device for kind in drawn)
    return [
        kind
        for kind in constants
        if _form(kind) in drawn_forms or (uses[_form(kind)] > 1 and kind.bytes_per_device <= most)
    ]


def _form(kind: Kind) -> Form:
    return kind.shape, kind.sharding


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
