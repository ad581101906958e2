"""Which elements of a parameter a device holds, in the order in which its shard stores them.

A shard is runs of neighbours: of [4, 6] split in two along the second dimension, device 1 holds
elements 3 4 5, 9 10 11, 15 16 17, 21 22 23. So the n-th element that a device holds is the device's
first plus n, and for every run that ends before n, the gap to the next one.
"""

# W devices, R levels: lengths at which a gap follows

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

MAX_SHARD = 2**31  # elements of a shard that a signed 32-bit number can count
MAX_PIECE = 2**20  # neighbours up to which single precision divides without an error


@dataclass(frozen=True)
class ShardOrder:
    """The elements of the shards of one shape under one sharding.

    `num_elements`: of each shard. `firsts`: uint32 [W], each device's first element, by the order
    of the mesh. `levels`: (length, gap) pairs, innermost first; a level's length counts units of
    the level below, and its gap is what the next unit's index lies ahead of the plain count.
    """

    num_elements: int
    firsts: np.ndarray
    levels: tuple[tuple[int, int], ...]

    def rows(self, num_levels: int, piece: int) -> np.ndarray:
        """What `element_indices` and the loop over pieces read: uint32 [W, 2 + 2 num_levels].

        A row is the number of pieces, the first element, and the levels, of which those that are
        not needed are longer than the shard.
        """
        spare = ((MAX_SHARD - 1, 0),) * (num_levels - len(self.levels))
        numbers = [word % 2**32 for level in (*self.levels, *spare) for word in level]
        own = np.broadcast_to(np.array(numbers, np.uint32), (len(self.firsts), len(numbers)))
        pieces = np.full_like(self.firsts, -(-self.num_elements // piece))
        return np.concatenate([np.stack([pieces, self.firsts], axis=1), own], axis=1)


def shard_order(shape: tuple[int, ...], sharding: NamedSharding) -> ShardOrder:
    """The order of a sharded parameter's elements on every device of its mesh."""
    shard = sharding.shard_shape(shape)
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    slices = sharding.devices_indices_map(shape)
    firsts = [
        sum((at.start or 0) * stride for at, stride in zip(slices[device], strides, strict=True))
        for device in sharding.mesh.devices.flat
    ]
    return ShardOrder(
        math.prod(shard), np.array(firsts, np.uint64).astype(np.uint32), _levels(shape, shard)
    )


def element_indices(row: jax.Array, start: jax.Array, length: int) -> jax.Array:
    """Indices in the whole parameter of a shard's elements from `start` on, uint32 [length].

    `row` is one of `ShardOrder.rows`, `start` a uint32 scalar, `length` at most MAX_PIECE.
    Indices are modulo 2**32; what lies past the shard's end means nothing.
    """
    steps = jax.lax.iota(np.int32, length)
    indices = start + row[1] + steps.astype(np.uint32)
    for level in range((row.shape[0] - 2) // 2):
        unit, gap = row[2 + 2 * level], row[3 + 2 * level]
        steps = _passed(start % unit, steps, unit)
        start = start // unit
        indices = indices + (start + steps.astype(np.uint32)) * gap
    return indices


def _passed(start: jax.Array, steps: jax.Array, unit: jax.Array) -> jax.Array:
    """(start + steps) // unit for start < unit, int32, without a division of integers.

    Within the first unit the answer is 0. Past it, the count is below 2 MAX_PIECE, where a product
    of single precision is nearer to the quotient plus a half unit than to the next whole number.
    """
    past = jnp.maximum(steps + (start - unit).astype(np.int32), -1)
    inverse = 1.0 / unit.astype(np.float32)
    return 1 + jnp.floor((past.astype(np.float32) + 0.5) * inverse).astype(np.int32)


def _levels(shape: tuple[int, ...], shard: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Cuts after every split dimension that has more than one index outside of it."""
    levels: list[tuple[int, int]] = []
    length, stride, counted = 1, 1, 1  # units a run, elements of the whole a run, a unit's stride
    for dim in reversed(range(len(shape))):
        length, stride = length * shard[dim], stride * shape[dim]
        if shard[dim] != shape[dim] and math.prod(shard[:dim]) > 1:
            levels.append((length, stride - length * counted))
            length, counted = 1, stride
    return tuple(levels)
