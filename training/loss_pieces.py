"""The same cross entropy with few logits in memory: a piece of the vocabulary at a time.

A long row has more logits than anything else: 16,384 tokens of a vocabulary of 128,256 are 8.4 GB,
and as much again for their gradient. Here a running sum of exponentials goes over the vocabulary,
and the backward pass makes each piece's logits again, which costs a third more of the head's FLOPs.
"""

# B batch, T position, D model width, V vocabulary, in W shards over the mesh of n pieces of v

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from model import Head, Placement, Transformer
from training.loss import token_losses

Sums = tuple[jax.Array, jax.Array, jax.Array]
"""Largest logit so far, sum of exponentials relative to it, logit of the target: float32 [B, T]."""


@dataclass(frozen=True)
class Pieces:
    """How a vocabulary is cut: each of `num_shards` has `width` words in `count` pieces."""

    num_shards: int
    width: int
    count: int

    @property
    def size(self) -> int:
        """Words of a piece of a shard; the last piece may have fewer."""
        return math.ceil(self.width / self.count)


def cut_vocabulary(
    tokens: tuple[int, ...], vocab_size: int, placement: Placement, limit: int
) -> Pieces:
    """Pieces of the logits of [B, T] tokens, float32, of at most `limit` bytes on a device."""
    shape = (*tokens, vocab_size)
    shard, mesh = shape, placement.attention.mesh
    if mesh is not None:
        sharding = placement.rules.sharding(mesh, ("batch", "sequence", "vocab"), shape)
        shard = sharding.shard_shape(shape)
    width = shard[-1]
    least = min(width, max(1, math.ceil(4 * math.prod(shard) / limit)))
    even = (count for count in range(least, 2 * least + 1) if width % count == 0)
    return Pieces(vocab_size // width, width, next(even, least))


def model_losses(
    model: Transformer, x_BTD: jax.Array, targets_BT: jax.Array, logits_bytes: int
) -> jax.Array:
    """-log p(target) of every token, float32 [B, T], from what the output head reads.

    At most `logits_bytes` of logits are alive on a device.
    """
    placement, vocab_size = model.placement, model.config.vocab_size
    pieces = cut_vocabulary(targets_BT.shape, vocab_size, placement, logits_bytes)
    if pieces.count == 1:
        return token_losses(model.logits(x_BTD), targets_BT)
    head = model.output_head()
    cut = _Cut(pieces, placement, head.soft_cap)
    return _losses(cut, x_BTD, cut.kernel(head), targets_BT)


@dataclass(frozen=True)
class _Cut:
    pieces: Pieces
    placement: Placement
    soft_cap: float | None

    def kernel(self, head: Head) -> jax.Array:
        """[D, W, n, v]; the last pieces end in zeros where they have fewer words."""
        kernel = head.kernel.T if head.is_table else head.kernel
        shards, count, size = self.pieces.num_shards, self.pieces.count, self.pieces.size
        kernel = kernel.reshape(-1, shards, self.pieces.width)
        kernel = jnp.pad(kernel, [(0, 0), (0, 0), (0, count * size - self.pieces.width)])
        return kernel.reshape(-1, shards, count, size)

    def logits(self, x_BTD: jax.Array, kernel_DWv: jax.Array, number: jax.Array) -> jax.Array:
        """Of one piece, float32 [B, T, W, v]; far below all others where there is no word."""
        logits = jnp.einsum("BTD,DWv->BTWv", x_BTD, kernel_DWv, preferred_element_type=jnp.float32)
        logits = self.placement.activation(logits, "batch", "sequence", "vocab", None)
        if self.soft_cap is not None:
            logits = self.soft_cap * jnp.tanh(logits / self.soft_cap)
        return jnp.where(self._place(number) < self.pieces.width, logits, -jnp.inf)

    def is_target(self, targets_BT: jax.Array, number: jax.Array) -> jax.Array:
        """bool [B, T, W, v]."""
        shards = self.pieces.width * jnp.arange(self.pieces.num_shards, dtype=jnp.int32)
        place = self._place(number)
        is_word = place < self.pieces.width
        return is_word & (shards[:, None] + place == targets_BT[:, :, None, None])

    def _place(self, number: jax.Array) -> jax.Array:
        """Where the words of a piece stand in their shard, int32 [v]."""
        return number * self.pieces.size + jnp.arange(self.pieces.size, dtype=jnp.int32)

    def loop(self, body: Callable[[jax.Array, Any], Any], start: Any) -> Any:
        return jax.lax.fori_loop(0, self.pieces.count, body, start)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses(cut: _Cut, x: jax.Array, kernel: jax.Array, targets: jax.Array) -> jax.Array:
    return _forward(cut, x, kernel, targets)[0]


def _forward(
    cut: _Cut, x: jax.Array, kernel: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[Any, ...]]:
    def add(number: jax.Array, sums: Sums) -> Sums:
        largest, total, target = sums
        logits = cut.logits(x, kernel[:, :, number], number)
        new = jnp.maximum(largest, logits.max((-2, -1)))
        total = total * jnp.exp(largest - new) + jnp.exp(logits - new[..., None, None]).sum(
            (-2, -1)
        )
        own = jnp.where(cut.is_target(targets, number), logits, 0.0)
        return new, total, target + own.sum((-2, -1))

    zero = jnp.zeros(targets.shape, jnp.float32)
    largest, total, target = cut.loop(add, (jnp.full_like(zero, -jnp.inf), zero, zero))
    return jnp.log(total) - (target - largest), (x, kernel, targets, largest, total)


def _backward(
    cut: _Cut, kept: tuple[Any, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x, kernel, targets, largest, total = kept

    def add(number: jax.Array, gradients: tuple[jax.Array, jax.Array]) -> Any:
        dx, dkernel = gradients
        piece = kernel[:, :, number]
        logits = cut.logits(x, piece, number)
        share = jnp.exp(logits - largest[..., None, None]) / total[..., None, None]
        by_logit = gradient[..., None, None] * (share - cut.is_target(targets, number))
        if cut.soft_cap is not None:
            by_logit *= 1 - jnp.square(jnp.maximum(logits / cut.soft_cap, -1))
        by_logit = by_logit.astype(x.dtype)
        dx += jnp.einsum("BTWv,DWv->BTD", by_logit, piece, preferred_element_type=jnp.float32)
        dpiece = jnp.einsum("BTD,BTWv->DWv", x, by_logit, preferred_element_type=jnp.float32)
        dpiece = cut.placement.constrain(dpiece.astype(kernel.dtype), ("embed", "vocab", None))
        return dx, jax.lax.dynamic_update_index_in_dim(dkernel, dpiece, number, 2)

    start = cut.placement.constrain(jnp.zeros_like(kernel), ("embed", "vocab", None, None))
    dx, dkernel = cut.loop(add, (jnp.zeros(x.shape, jnp.float32), start))
    return dx.astype(x.dtype), dkernel, None


_losses.defvjp(_forward, _backward)
