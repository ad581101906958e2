"""Tiles of attention on GPUs, by cuDNN's flash attention. Traced and shape-checked, not yet run.

cuDNN knows two masks, none and causal. So a tile is a chunk of queries and a chunk of keys, which
are one and the same chunk (causal) or attend to each other in full, and tiles are merged by their
log-sum-exp. The backward kernel gets the output and the log-sum-exp of the whole row, not of the
tile, and so gives the tile's part of the true gradients. jax.nn.dot_product_attention offers
neither, and rounds the log-sum-exp to the dtype of the output: hence JAX's internal entry points.
Shapes as in tiles.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from parallelism.attention.tiles import (
    KeyGradients,
    Keys,
    OwnGradients,
    Queries,
    Rule,
    Run,
    Saved,
    Softmax,
)

ResultT = TypeVar("ResultT")

LAYOUT = cudnn.AttentionLayout.BNTH


def add_tile(rule: Rule, old: Softmax, q: Queries, k: Keys, run: Run) -> Softmax:
    """Add a chunk of keys to the running softmax of a chunk of queries."""

    def forward(mask: cudnn.MaskType) -> tuple[jax.Array, jax.Array]:
        return cudnn.dot_product_attention(
            _by_head(q.query, rule),
            k.key,
            k.value,
            scale=rule.scale,
            mask_type=mask,
            qkv_layout=LAYOUT.name,
            return_residual=True,
        )

    out, lse = _with_mask(rule, q, run, forward)
    out, lse = out.astype(jnp.float32).reshape(old.out.shape), lse.reshape(old.total.shape)
    maximum = jnp.maximum(old.maximum, lse)
    decay, weight = jnp.exp(old.maximum - maximum), jnp.exp(lse - maximum)
    return Softmax(
        maximum,
        old.total * decay + weight,
        old.out * decay[..., None] + out * weight[..., None],
    )


def tile_gradients(rule: Rule, q: Saved, k: Keys, run: Run) -> tuple[OwnGradients, KeyGradients]:
    """Gradients that a chunk of queries and a chunk of keys give each other."""
    query, out, out_gradient = (_by_head(x, rule) for x in (q.queries.query, q.out, q.out_gradient))
    lse = q.lse.reshape(query.shape[:3])
    absent = [jnp.zeros(0, query.dtype)] * 7  # bias, lengths, offsets and page tables

    def backward(mask: cudnn.MaskType) -> tuple[jax.Array, ...]:
        operands = (query, k.key, k.value, *absent, lse, out, out_gradient)
        return tuple(
            cudnn._dot_product_attention_bwd_p_wrapper.bind(
                *operands,
                scale=rule.scale,
                seed=42,
                dropout_rate=0.0,
                variadic_args=(False, False),
                mask_type=mask,
                layout=LAYOUT.value,
                sliding_window_length=None,
            )
        )

    dq, dk, dv = (x.astype(jnp.float32) for x in _with_mask(rule, q.queries, run, backward))
    own = OwnGradients(dq.reshape(q.queries.query.shape))
    return own, KeyGradients(dk.swapaxes(-1, -2), dv.swapaxes(-1, -2))


def _with_mask(
    rule: Rule, q: Queries, run: Run, compute: Callable[[cudnn.MaskType], ResultT]
) -> ResultT:
    """Causal if queries and keys are the same chunk, else without a mask."""
    if not rule.mask.causal:
        return compute(cudnn.MaskType.NO_MASK)
    return lax.cond(
        q.start == run.start,
        lambda: compute(cudnn.MaskType.CAUSAL),
        lambda: compute(cudnn.MaskType.NO_MASK),
    )


def _by_head(x: jax.Array, rule: Rule) -> jax.Array:
    """[B, K, G*t, ...] -> [B, K*G, t, ...]."""
    batch, num_kv_heads, rows, *rest = x.shape
    return x.reshape(batch, num_kv_heads * rule.groups, rows // rule.groups, *rest)
