"""Threefry-2x32 as plain arithmetic: the bits of jax.random, which XLA fuses into their use.

On CPUs JAX's own threefry is a loop over arrays: it takes four times as long to compile, fourteen
times as long to run, and three times the size of the draw in memory. Here the rounds are written
out, so that one pass over the output makes its bits and its values. Bit for bit the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl, threefry_prng_impl

from parallelism.shard_order import element_indices

Words = TypeVar("Words", np.ndarray, jax.Array)

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def hash_block(key: tuple[Words, Words], block: tuple[Words, Words]) -> tuple[Words, Words]:
    """Twenty rounds over uint32 arrays that broadcast; Salmon et al., SC 2011, section 3.3."""
    schedule = (*key, key[0] ^ key[1] ^ np.uint32(_PARITY))
    left, right = block[0] + schedule[0], block[1] + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = (right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation))
            right = right ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def fold_in(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """jax.random.fold_in on the host. `keys` uint32 [..., 2], `numbers` uint32 [...]."""
    words = hash_block((keys[..., 0], keys[..., 1]), (np.zeros_like(numbers), numbers))
    return np.stack(words, axis=-1)


def fusible_key(key_data: jax.Array) -> jax.Array:
    """A key for jax.random that draws what a threefry2x32 key of these words does.

    `key_data` uint32 [2], traced or not; the result is a typed key, as of jax.random.key.
    """
    return jax.random.wrap_key_data(key_data, impl=_FUSIBLE)


def piece_key(key_data: jax.Array, row: jax.Array, start: jax.Array) -> jax.Array:
    """A key that draws a piece of a shard: the bits of the elements from `start` on.

    `key_data` uint32 [2], `row` as of ShardOrder.rows, `start` a uint32 scalar. It serves one call
    of a function of jax.random that takes a 32-bit word an element, for a shape [n] in place of
    the parameter's.
    """
    words = jnp.concatenate([key_data, start[None], row])
    return jax.random.wrap_key_data(words, impl=_of_pieces(row.shape[0]))


def _random_bits(key_data: jax.Array, bit_width: int, shape: Sequence[int]) -> jax.Array:
    """Element i of the flattened result is the hash of i: [*shape] of uint8, 16, 32 or 64."""
    if math.prod(shape) > 2**32:  # JAX counts in 64 bits
        return threefry_prng_impl.random_bits(key_data, bit_width, shape)
    index = jnp.zeros(shape, np.uint32)
    for dim in range(len(shape)):
        stride = np.uint32(math.prod(shape[dim + 1 :]))
        index = index + jax.lax.broadcasted_iota(np.uint32, shape, dim) * stride
    first, second = hash_block((key_data[0], key_data[1]), (jnp.zeros_like(index), index))
    if bit_width == 64:
        return first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64)
    return (first ^ second).astype(f"uint{bit_width}")


def _piece_bits(words: jax.Array, bit_width: int, shape: Sequence[int]) -> jax.Array:
    assert bit_width == 32, "a piece is drawn from 32-bit words"
    assert len(shape) == 1, "a piece is drawn as a row of elements"
    index = element_indices(words[3:], words[2], shape[0])
    first, second = hash_block((words[0], words[1]), (jnp.zeros_like(index), index))
    return first ^ second


def _no_other_key(*_: Any) -> Any:
    raise AssertionError("a piece is drawn with the key itself")


_FUSIBLE: Any = define_prng_impl(
    key_shape=threefry_prng_impl.key_shape,
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    random_bits=_random_bits,
    fold_in=threefry_prng_impl.fold_in,
    name="fusible_threefry2x32",
    tag="ffry",
)


@functools.cache
def _of_pieces(row_size: int) -> Any:
    return define_prng_impl(
        key_shape=(3 + row_size,),
        seed=_no_other_key,
        split=_no_other_key,
        random_bits=_piece_bits,
        fold_in=_no_other_key,
        name=f"threefry2x32_of_pieces_{row_size}",
        tag=f"pfry{row_size}",
    )
