"""Attention over planned block pairs: one loop, forward and backward.

The body of the loop takes a block of queries and a block of keys, and adds what they give to a
running softmax or to the gradients; the backward pass computes scores again from the inputs and the
log-sum-exp. So masked-out blocks cost nothing, a tile of scores stays in the cache, the compiler
sees one body whatever the length, and no array of S x S exists. Running softmax and gradients are
float32. Shapes as in tiles.py.

Sources: the running softmax of Milakov and Gimelshein, 2018 (arXiv:1805.02867); the backward pass
of FlashAttention-2, Dao, 2023 (arXiv:2307.08691), section 3.1.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from parallelism.attention.loops import added, block_of, loop, no_gradients, with_block
from parallelism.attention.narrow import attend_narrow, attend_narrow_backward
from parallelism.attention.tiles import (
    NO_KEYS,
    KeyGradients,
    Keys,
    OwnGradients,
    Queries,
    Rule,
    Saved,
    Softmax,
    Work,
)

FLOOR: Final = -1e30
"""The least running maximum; masked scores lie far below, so that exp(score - FLOOR) is zero."""


def begin(rule: Rule, query: jax.Array, sinks: jax.Array | None) -> Softmax:
    """The softmax over no keys, or over the sinks [K, G] alone: scores without a value."""
    rows = query.shape[:-1]
    out = jnp.zeros((*rows, rule.value_width), jnp.float32)
    index = jnp.zeros(rows) if rule.trains_index else None
    if sinks is None:
        return Softmax(jnp.full(rows, FLOOR), jnp.zeros(rows), out, index)
    block = rows[-1] // sinks.shape[1]
    scores = jnp.repeat(sinks.astype(jnp.float32), block, axis=1)
    return Softmax(jnp.broadcast_to(scores, rows), jnp.ones(rows), out, index)


def attend(
    rule: Rule, softmax: Softmax, queries: Queries, keys: Keys, work: Work, *, weights: Any = None
) -> Softmax:
    """Add the pairs of `work` to a running softmax; with `weights`, keys are narrow (narrow.py)."""
    if weights is not None:
        return attend_narrow(rule, softmax, queries, keys, work, weights=weights)

    def add(pair: jax.Array, softmax: Softmax) -> Softmax:
        i, j = work.pairs[pair]
        q, k, run = block_of(queries, i), block_of(keys, j), block_of(work.runs, j)
        new = rule.kernel.add_tile(rule, block_of(softmax, i), q, k, run)
        return with_block(softmax, new, i)

    return loop(0, work.num_pairs, add, softmax)


def finish(softmax: Softmax) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Output float32 [n, B, K, G*t, Hv], zero for a row without keys, its log-sum-exp, and the
    mean of its index scores, [n, B, K, G*t], if the index is trained.
    """
    empty = softmax.total == 0
    total = jnp.where(empty, 1, softmax.total)
    lse = jnp.where(empty, NO_KEYS, softmax.maximum + jnp.log(total))
    index = None if softmax.index is None else softmax.index / total
    return softmax.out / total[..., None], lse, index


def attend_backward(
    rule: Rule, own: OwnGradients, saved: Saved, keys: Keys, work: Work, *, weights: Any = None
) -> tuple[OwnGradients, KeyGradients]:
    """Gradients that the pairs of `work` give: this rank's own, added to `own`, and of the keys."""
    if weights is not None:
        return attend_narrow_backward(rule, own, saved, keys, work, weights=weights)

    def add(
        pair: jax.Array, gradients: tuple[OwnGradients, KeyGradients]
    ) -> tuple[OwnGradients, KeyGradients]:
        i, j = work.pairs[pair]
        own, dk = gradients
        q, k, run = block_of(saved, i), block_of(keys, j), block_of(work.runs, j)
        own_tile, dk_tile = rule.kernel.tile_gradients(rule, q, k, run)
        return added(own, own_tile, i), added(dk, dk_tile, j)

    return loop(0, work.num_pairs, add, (own, no_gradients(rule, keys)))
