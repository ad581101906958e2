"""Moving a sharded sequence between contiguous and folded order, seen from inside one rank.

Every function here runs where the context axis is manual (inside jax.shard_map) and takes this
rank's shard. With C ranks, S tokens and L = S/C of them here:

    zigzag    two collective-permutes of half a shard each. Contiguous rank r holds chunks 2r and
              2r+1; chunk c belongs to rank min(c, 2C-1-c). No rank receives two even chunks, nor
              two odd ones, so the even chunks travel in one permutation and the odd in another.
    striped   one all-to-all that takes (C-1)/C of every shard to another rank.

Shards may have any rank and dtype; `dim` is the sequence dimension, counted from the front.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from parallelism.layout import Layout


def exchange(x: jax.Array, layout: Layout, dim: int, axis: str, *, folded: bool) -> jax.Array:
    """This rank's shard in the other order: contiguous to `layout`, or back if `folded`.

    The shard's shape does not change. Raises ValueError unless L * cp tokens fit the layout.
    """
    layout.check(x.shape[dim] * layout.cp)
    if layout.is_identity:
        return x
    if layout.name == "zigzag":
        move = _zigzag_back if folded else _zigzag_out
        return move(x, dim, axis, layout.cp)
    if x.shape[dim] % layout.cp == 0:
        move = _striped_back if folded else _striped_out
    else:
        move = _ragged_back if folded else _ragged_out
    return move(x, dim, axis, layout.cp)


# Zigzag


def _homes(cp: int) -> tuple[list[int], list[int]]:
    """The folded rank of chunks 0, 2, 4, ... and of 1, 3, 5, ...: cp=3 -> [0, 2, 1], [1, 2, 0]."""
    home = [min(chunk, 2 * cp - 1 - chunk) for chunk in range(2 * cp)]
    return home[::2], home[1::2]


def _zigzag_out(x: jax.Array, dim: int, axis: str, cp: int) -> jax.Array:
    even_homes, odd_homes = _homes(cp)
    half = x.shape[dim] // 2
    even, odd = lax.split(x, (half, half), axis=dim)
    even = lax.ppermute(even, axis, list(enumerate(even_homes)))
    odd = lax.ppermute(odd, axis, list(enumerate(odd_homes)))
    # Rank r's own chunk r comes first, so an odd rank has its odd chunk in front.
    return _join(even, odd, lax.axis_index(axis) & 1, dim)


def _zigzag_back(x: jax.Array, dim: int, axis: str, cp: int) -> jax.Array:
    even_homes, odd_homes = _homes(cp)
    half = x.shape[dim] // 2
    first, second = lax.split(x, (half, half), axis=dim)
    swap = (lax.axis_index(axis) & 1) == 1
    even, odd = jnp.where(swap, second, first), jnp.where(swap, first, second)
    even = lax.ppermute(even, axis, [(home, rank) for rank, home in enumerate(even_homes)])
    odd = lax.ppermute(odd, axis, [(home, rank) for rank, home in enumerate(odd_homes)])
    return lax.concatenate([even, odd], dimension=dim)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _join(first: jax.Array, second: jax.Array, swap: jax.Array, dim: int) -> jax.Array:
    """[first, second] along `dim`, or [second, first] where `swap` is 1.

    Written into place, each half is read once: a fifth fewer bytes for the whole exchange than the
    two selects of `_joined_by_selects`. Those transpose better, so derivatives go through them.
    """
    half = first.shape[dim]
    shape = list(first.shape)
    shape[dim] = 2 * half
    joined = lax.empty(tuple(shape), first.dtype, out_sharding=jax.typeof(first).sharding)
    joined = lax.dynamic_update_slice_in_dim(joined, first, swap * half, axis=dim)
    return lax.dynamic_update_slice_in_dim(joined, second, (1 - swap) * half, axis=dim)


@_join.defjvp
def _join_jvp(
    dim: int, primals: Sequence[jax.Array], tangents: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    first, second, swap = primals
    tangent = _joined_by_selects(tangents[0], tangents[1], swap, dim)
    return _join(first, second, swap, dim), tangent


def _joined_by_selects(first: jax.Array, second: jax.Array, swap: jax.Array, dim: int) -> jax.Array:
    halves = jnp.where(swap == 1, second, first), jnp.where(swap == 1, first, second)
    return lax.concatenate(halves, dimension=dim)


# Striped, L a multiple of C: the shard is striped on its own, which puts the tokens for each rank
# side by side, and then every pair of ranks swaps blocks.


def _striped_out(x: jax.Array, dim: int, axis: str, cp: int) -> jax.Array:
    return _swap_blocks(Layout("striped", cp).fold(x, dim), dim, axis, cp)


def _striped_back(x: jax.Array, dim: int, axis: str, cp: int) -> jax.Array:
    return Layout("striped", cp).unfold(_swap_blocks(x, dim, axis, cp), dim)


def _swap_blocks(x: jax.Array, dim: int, axis: str, cp: int) -> jax.Array:
    """Send block s of C to rank s and keep what arrives in the order of its senders.

    One all-to-all, unless some other mesh axis is left to XLA: XLA would gather every dimension
    that is sharded over it before an all-to-all, though not before a collective-permute. C-1 of
    those then move the same bytes.
    """
    if not _others_left_to_xla(axis):
        return lax.all_to_all(x, axis, dim, dim, tiled=True)
    rank, size, swapped = lax.axis_index(axis), x.shape[dim] // cp, x
    for hop in range(1, cp):
        route = [(sender, (sender + hop) % cp) for sender in range(cp)]
        block = lax.dynamic_slice_in_dim(x, (rank + hop) % cp * size, size, axis=dim)
        block = lax.ppermute(block, axis, route)
        start = (rank - hop) % cp * size
        swapped = lax.dynamic_update_slice_in_dim(swapped, block, start, axis=dim)
    return swapped


def _others_left_to_xla(axis: str) -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    others = set(mesh.axis_names) - set(mesh.manual_axes) - {axis}
    return any(mesh.shape[other] > 1 for other in others)


# Striped, any other L: rank r's first token is not one for rank 0 but for rank r*L mod C. Shards
# are padded to whole rows, and a row that spans two ranks (or more, where L < C) is put together
# again from both. Rows count over the whole sequence: row j holds tokens j*C to j*C + C-1.


def _row_blocks(local: int, cp: int) -> tuple[list[int], list[int], int]:
    """Per rank, its first row and its offset in that row; and the most rows that any rank touches.

    local=4, cp=3 -> tokens 0..3, 4..7, 8..11 lie in rows 0..1, 1..2, 2..3: [0, 1, 2], [0, 1, 2], 2.
    """
    firsts = [rank * local // cp for rank in range(cp)]
    offsets = [rank * local % cp for rank in range(cp)]
    return firsts, offsets, max(-(-(offset + local) // cp) for offset in offsets)


def _ragged_out(x: jax.Array, dim: int, axis: str, cp: int) -> jax.Array:
    local = x.shape[dim]
    firsts, offsets, num_rows = _row_blocks(local, cp)
    rank = lax.axis_index(axis)
    aligned = _longer(x, dim, num_rows * cp - local)
    aligned = lax.dynamic_update_slice_in_dim(aligned, x, rank * local % cp, axis=dim)
    blocks = jnp.split(_striped_out(aligned, dim, axis, cp), cp, axis=dim)
    moved = _longer(x, dim, num_rows)
    for first, offset, block in zip(firsts, offsets, blocks, strict=True):
        token = jnp.arange(num_rows) * cp + rank - offset
        mine = jnp.expand_dims((token >= 0) & (token < local), _all_but(dim, x.ndim))
        below = lax.slice_in_dim(moved, first, first + num_rows, axis=dim)
        merged = jnp.where(mine, block, below)
        moved = lax.dynamic_update_slice_in_dim(moved, merged, first, axis=dim)
    return lax.slice_in_dim(moved, 0, local, axis=dim)


def _ragged_back(x: jax.Array, dim: int, axis: str, cp: int) -> jax.Array:
    local = x.shape[dim]
    firsts, _, num_rows = _row_blocks(local, cp)
    rows = _longer(x, dim, num_rows)
    blocks = [lax.slice_in_dim(rows, first, first + num_rows, axis=dim) for first in firsts]
    moved = _striped_back(lax.concatenate(blocks, dimension=dim), dim, axis, cp)
    start = lax.axis_index(axis) * local % cp
    return lax.dynamic_slice_in_dim(moved, start, local, axis=dim)


def _longer(x: jax.Array, dim: int, amount: int) -> jax.Array:
    """Room for `amount` more tokens; what is in it is always written or masked before it counts."""
    return jnp.pad(x, [(0, amount if i == dim else 0) for i in range(x.ndim)])


def _all_but(dim: int, ndim: int) -> tuple[int, ...]:
    return tuple(i for i in range(ndim) if i != dim)
