"""Tiles of attention in plain XLA: every mask, on every platform.

Scores, weights and sums are float32; matrix products take the dtype of the inputs. Shapes as in
tiles.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from parallelism.attention.blocks import FAR
from parallelism.attention.selection import index_scores
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

MASKED: Final = -2e30
"""A masked score: twice as low as the least running maximum, blockwise.FLOOR."""


def add_tile(rule: Rule, old: Softmax, q: Queries, k: Keys, run: Run) -> Softmax:
    """Add a block of keys to the running softmax of a block of queries."""
    scores, pairs = _scores(rule, q, k, run)
    maximum = jnp.maximum(old.maximum, scores.max(-1))
    weights = jnp.exp(scores - maximum[..., None])
    decay = jnp.exp(old.maximum - maximum)
    return Softmax(
        maximum,
        old.total * decay + weights.sum(-1),
        old.out * decay[..., None] + _product("bkts,bksh->bkth", weights, k.value),
        old.index * decay + _weighted_index(rule, weights, pairs) if rule.trains_index else None,
    )


def tile_gradients(rule: Rule, q: Saved, k: Keys, run: Run) -> tuple[OwnGradients, KeyGradients]:
    """Gradients that a block of queries and a block of keys give each other."""
    scores, pairs = _scores(rule, q.queries, k, run)
    weights = jnp.exp(scores - q.lse[..., None])
    by_weight = _product("bkth,bksh->bkts", q.out_gradient, k.value) - q.delta[..., None]
    by_score = weights * by_weight * _soft_cap_slope(rule, scores)
    own = OwnGradients(rule.scale * _product("bkts,bksh->bkth", by_score, k.key))
    of_keys = KeyGradients(
        key=rule.scale * _product("bkth,bkts->bkhs", q.queries.query, by_score),
        value=_product("bkth,bkts->bkhs", q.out_gradient, weights),
    )
    if not rule.trains_index:
        return own, of_keys
    by_query, by_key = _index_gradients(q, k, weights, pairs)
    return own._replace(index=by_query), of_keys._replace(index=by_key)


class Pairs(NamedTuple):
    """What a tile knows of its pairs, whatever the head."""

    allowed: jax.Array | None  # bool [B or 1, G*t, s]; None is all
    scores: Any  # float32 [B, t, s]: of the index; None without one


def _scores(rule: Rule, q: Queries, k: Keys, run: Run) -> tuple[jax.Array, Pairs]:
    """Masked scores of one tile, float32 [B, K, G*t, s]."""
    scores = rule.scale * _product("bkth,bksh->bkts", q.query, k.key)
    if rule.soft_cap is not None:
        scores = rule.soft_cap * jnp.tanh(scores / rule.soft_cap)
    index = None if q.selecting is None else q.selecting.scores(k.index)
    conditions = list(_conditions(rule, q, k, run))
    if index is not None:
        chosen = index >= q.selecting.least[:, :, None]
        conditions.append(_for_groups(chosen, rule))
    if not conditions:
        return scores, Pairs(None, index)
    mask = functools.reduce(jnp.logical_and, conditions)
    return jnp.where(mask[:, None], scores, MASKED), Pairs(mask, index)


def _weighted_index(rule: Rule, weights: jax.Array, pairs: Pairs) -> jax.Array:
    """The index scores of a tile, weighted as the values are: float32 [B, K, G*t]."""
    return jnp.sum(weights * _for_groups(pairs.scores, rule)[:, None], axis=-1)


def _index_gradients(
    q: Saved, k: Keys, weights: jax.Array, pairs: Pairs
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Gradients of the index queries and their weights, and of the index keys, float32.

    Of the loss by a score: the share of the index less that of the attention, mean over heads.
    """
    selecting = q.queries.selecting
    assert pairs.allowed is not None
    batch, tokens, slots = pairs.scores.shape
    attention = weights.reshape(batch, -1, tokens, slots).mean(1)
    share = jnp.exp(pairs.scores - selecting.total[..., None])
    share = jnp.where(pairs.allowed[:, :tokens], share, 0.0)
    by_score = q.index_gradient[..., None] * (share - attention)
    pull_back = jax.vjp(index_scores, selecting.query, selecting.weights, k.index)[1]
    by_query, by_weight, by_key = (x.astype(jnp.float32) for x in pull_back(by_score))
    return (by_query, by_weight), by_key


def _conditions(rule: Rule, q: Queries, k: Keys, run: Run) -> Iterator[jax.Array]:
    """All that has to hold for a query to attend to a key, each bool [B or 1, G*t, s]."""
    slots = jnp.arange(k.key.shape[2])
    if rule.keys_padded:
        yield (slots < run.length)[None, None, :]
    if q.segments is not None and k.segments is not None:
        yield _for_groups(q.segments, rule)[:, :, None] == k.segments[:, None, :]
    low, high = rule.mask.reach
    if q.positions is not None and k.positions is not None:
        distance = _for_groups(q.positions, rule)[:, :, None] - k.positions[:, None, :]
        shift = jnp.int32(0)
    else:
        # Constant distances against a bound that moves: CPUs run this a tenth faster than the
        # distances themselves.
        offsets = _for_groups(jnp.arange(q.query.shape[2] // rule.groups)[None], rule)
        distance = rule.step * (offsets[:, :, None] - slots)
        shift = q.start - run.start
    if low > -FAR:
        yield distance >= low - shift
    if high < FAR:
        yield distance <= high - shift


def _for_groups(tokens: jax.Array, rule: Rule) -> jax.Array:
    """Numbers per query token, repeated for the heads that share a key/value head."""
    return jnp.tile(tokens, (1, rule.groups, *[1] * (tokens.ndim - 2)))


def _soft_cap_slope(rule: Rule, scores: jax.Array) -> jax.Array | float:
    """Derivative of the capped score by the score; 0 where it is masked."""
    if rule.soft_cap is None:
        return 1.0
    return 1 - jnp.square(jnp.maximum(scores / rule.soft_cap, -1))


def _product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix product in the dtype of the inputs (weights are float32), summed in float32."""
    dtype = x.dtype if y.dtype == jnp.float32 else y.dtype
    return jnp.einsum(
        equation, x.astype(dtype), y.astype(dtype), preferred_element_type=jnp.float32
    )
