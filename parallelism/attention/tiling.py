"""Cutting a rank's shard into blocks and joining blocks to a shard again.

Blocks lie in front and the heads that share a key/value head lie side by side, so that one tile of
attention is one slice and one matrix product. Legend: B batch, T tokens here, N heads of the array,
K key/value heads, G = N/K, n blocks of t slots each (T plus what padding a chunk needs).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from parallelism.attention.blocks import Blocks


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def repeat_heads(x: jax.Array, copies: int) -> jax.Array:
    """[B, S, K, H] -> [B, S, K*copies, H], each head `copies` times; gradients sum in float32."""
    return x if copies == 1 else jnp.repeat(x, copies, axis=2)


def _repeat_forward(x: jax.Array, copies: int) -> tuple[jax.Array, None]:
    return repeat_heads(x, copies), None


def _repeat_backward(copies: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    if copies == 1:
        return (gradient,)
    batch, length, heads, width = gradient.shape
    split = gradient.reshape(batch, length, heads // copies, copies, width)
    return (split.astype(jnp.float32).sum(3).astype(gradient.dtype),)


repeat_heads.defvjp(_repeat_forward, _repeat_backward)


def cut_heads(x: jax.Array, blocks: Blocks, num_kv_heads: int) -> jax.Array:
    """[B, T, N, ...] -> [n, B, K, G*t, ...]; padded slots hold zeros."""
    x = _blocked(x, blocks)
    batch, num_blocks, size, num_heads, *rest = x.shape
    x = x.reshape(batch, num_blocks, size, num_kv_heads, num_heads // num_kv_heads, *rest)
    x = x.transpose(1, 0, 3, 4, 2, *range(5, x.ndim))
    return x.reshape(num_blocks, batch, num_kv_heads, -1, *rest)


def join_heads(x: jax.Array, blocks: Blocks) -> jax.Array:
    """[n, B, K, G*t, ...] -> [B, T, N, ...], without the padding."""
    num_blocks, batch, num_kv_heads, _, *rest = x.shape
    x = x.reshape(num_blocks, batch, num_kv_heads, -1, blocks.size, *rest)
    x = x.transpose(1, 0, 4, 2, 3, *range(5, x.ndim))
    x = x.reshape(batch, num_blocks * blocks.size, -1, *rest)
    if not blocks.padded:
        return x
    chunk = int(blocks.length.sum()) // blocks.num_chunks
    x = x.reshape(batch, blocks.num_chunks, -1, *x.shape[2:])[:, :, :chunk]
    return x.reshape(batch, blocks.num_chunks * chunk, *x.shape[3:])


def cut_tokens(x: jax.Array, blocks: Blocks) -> jax.Array:
    """[B, T, ...] -> [n, B, t, ...]; padded slots hold zeros."""
    return _blocked(x, blocks).swapaxes(0, 1)


def join_tokens(x: jax.Array, blocks: Blocks) -> jax.Array:
    """[n, B, t, ...] -> [B, T, ...], without the padding."""
    return join_heads(x[:, :, None], blocks)[:, :, 0]


def _blocked(x: jax.Array, blocks: Blocks) -> jax.Array:
    """[B, T, ...] -> [B, n, t, ...], every chunk padded to whole blocks."""
    batch, _, *rest = x.shape
    if blocks.padded:
        x = x.reshape(batch, blocks.num_chunks, -1, *rest)
        chunk = len(blocks.length) // blocks.num_chunks * blocks.size
        widths = [(0, 0), (0, 0), (0, chunk - x.shape[2])] + [(0, 0)] * len(rest)
        x = jnp.pad(x, widths)
    return x.reshape(batch, -1, blocks.size, *rest)
