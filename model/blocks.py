"""Products of sorted rows with many matrices, block by block: the form that is fast on CPUs.

`jax.lax.ragged_dot` is one kernel on a TPU; on a CPU, XLA computes every row with every matrix.
Here a block is a few rows of one expert, in order:

    sizes [5 0 2], blocks of 4   ->   rows 0..3 of expert 0, 4..7 of 0 (one its own), 5..8 of 2

A block that reaches past its expert's rows writes there too; the blocks that follow write over it.
"""

# M rows, E experts, D and F the widths of a matrix, R rows of a block

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_LEAST, _MOST = 8, 128  # rows of a block


class _Blocks(NamedTuple):
    """How many blocks are in use, and of each its expert, its first row and how many rows are its
    own; int32, [M // R + E] each."""

    used: jax.Array
    expert: jax.Array
    first: jax.Array
    own: jax.Array


@jax.custom_vjp
def blocked_dot(rows_MD: jax.Array, kernel_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """Rows times the matrix of their expert, [M, F]: the first sizes[0] rows are expert 0's, ...

    Sums in float32, result in the rows' dtype. Rows past the last expert's are undefined.
    """
    size = _block_size(rows_MD, kernel_EDF)
    blocks = _blocks(sizes_E, rows_MD.shape[0], size)
    rows = _with_room(rows_MD, size)
    out = jnp.zeros((rows.shape[0], kernel_EDF.shape[2]), rows.dtype)

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        block = jax.lax.dynamic_slice_in_dim(rows, blocks.first[i], size)
        product = jnp.dot(block, kernel_EDF[blocks.expert[i]], preferred_element_type=jnp.float32)
        product = product.astype(out.dtype)
        return jax.lax.dynamic_update_slice_in_dim(out, product, blocks.first[i], 0)

    return jax.lax.fori_loop(0, blocks.used, body, out)[: rows_MD.shape[0]]


def _forward(
    rows: jax.Array, kernel: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return blocked_dot(rows, kernel, sizes), (rows, kernel, sizes)


def _backward(
    saved: tuple[jax.Array, jax.Array, jax.Array], grad_MF: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, kernel, sizes = saved
    grad_rows = blocked_dot(grad_MF, kernel.swapaxes(1, 2), sizes)
    is_served = jnp.arange(rows.shape[0]) < jnp.sum(sizes)
    return (
        jnp.where(is_served[:, None], grad_rows, 0),
        _of_kernel(rows, kernel, sizes, grad_MF),
        None,
    )


blocked_dot.defvjp(_forward, _backward)


def _of_kernel(
    rows_MD: jax.Array, kernel_EDF: jax.Array, sizes_E: jax.Array, grad_MF: jax.Array
) -> jax.Array:
    """The sum over each expert's rows of row times gradient, [E, D, F]."""
    size = _block_size(rows_MD, kernel_EDF)
    blocks = _blocks(sizes_E, rows_MD.shape[0], size)
    rows, grad = _with_room(rows_MD, size), _with_room(grad_MF, size)

    def body(i: jax.Array, total: jax.Array) -> jax.Array:
        is_own = (jnp.arange(size) < blocks.own[i])[:, None]
        row, out = (jax.lax.dynamic_slice_in_dim(x, blocks.first[i], size) for x in (rows, grad))
        row, out = jnp.where(is_own, row, 0), jnp.where(is_own, out, 0)
        product = jnp.dot(row.T, out, preferred_element_type=jnp.float32)
        return total.at[blocks.expert[i]].add(product)

    total = jnp.zeros(kernel_EDF.shape, jnp.float32)
    return jax.lax.fori_loop(0, blocks.used, body, total).astype(kernel_EDF.dtype)


def _block_size(rows_MD: jax.Array, kernel_EDF: jax.Array) -> int:
    """The largest power of two that an expert's even share of the rows fills."""
    share = max(1, rows_MD.shape[0] // kernel_EDF.shape[0])
    return min(max(1 << (share.bit_length() - 1), _LEAST), _MOST)


def _with_room(x: jax.Array, size: int) -> jax.Array:
    """So that the last block does not reach past the end."""
    return jnp.pad(x, ((0, size), (0, 0)))


def _blocks(sizes_E: jax.Array, num_rows: int, size: int) -> _Blocks:
    """[5 0 2] in blocks of 4 -> 3 of them: experts 0 0 2, first rows 0 4 5, own rows 4 1 2."""
    num_experts = sizes_E.shape[0]
    counts = -(-sizes_E // size)
    ends, first_rows = jnp.cumsum(counts), jnp.cumsum(sizes_E) - sizes_E
    number = jnp.arange(num_rows // size + num_experts)
    expert = jnp.minimum(jnp.searchsorted(ends, number, side="right"), num_experts - 1)
    done = (number - (ends - counts)[expert]) * size
    own = jnp.minimum(sizes_E[expert] - done, size)
    return _Blocks(ends[-1], expert, first_rows[expert] + done, own)
