"""Attention where ranks exchange something narrower than keys and values.

Latent attention makes the keys and values of many heads from one narrow vector per token. That is
what travels and what is kept here; each block of it is expanded when its turn comes, once for all
the blocks of queries that meet it, and again in the backward pass. Shapes as in tiles.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from parallelism.attention.loops import added, block_of, loop, no_gradients, with_block
from parallelism.attention.tiles import (
    KeyGradients,
    Keys,
    OwnGradients,
    Queries,
    Rule,
    Saved,
    Softmax,
    Work,
)


def attend_narrow(
    rule: Rule, softmax: Softmax, queries: Queries, keys: Keys, work: Work, *, weights: jax.Array
) -> Softmax:
    """Add the pairs of `work` to a running softmax."""

    def add_block(visit: jax.Array, softmax: Softmax) -> Softmax:
        j, first, last = work.visits[visit]
        k, run = expanded(rule, block_of(keys, j), weights), block_of(work.runs, j)

        def add(pair: jax.Array, softmax: Softmax) -> Softmax:
            i = work.pairs[pair, 0]
            old, q = block_of(softmax, i), block_of(queries, i)
            return with_block(softmax, rule.kernel.add_tile(rule, old, q, k, run), i)

        return loop(first, last, add, softmax)

    return loop(0, work.num_visits, add_block, softmax)


def attend_narrow_backward(
    rule: Rule, own: OwnGradients, saved: Saved, keys: Keys, work: Work, *, weights: jax.Array
) -> tuple[OwnGradients, KeyGradients]:
    """Gradients that the pairs of `work` give: this rank's own, added to `own`, and of the keys."""

    def add_block(
        visit: jax.Array, gradients: tuple[OwnGradients, KeyGradients]
    ) -> tuple[OwnGradients, KeyGradients]:
        own, dk = gradients
        j, first, last = work.visits[visit]
        narrow, run = block_of(keys, j), block_of(work.runs, j)
        k = expanded(rule, narrow, weights)

        def add(
            pair: jax.Array, gradients: tuple[OwnGradients, KeyGradients]
        ) -> tuple[OwnGradients, KeyGradients]:
            i = work.pairs[pair, 0]
            own, dk = gradients
            own_tile, dk_tile = rule.kernel.tile_gradients(rule, block_of(saved, i), k, run)
            return added(own, own_tile, i), jax.tree.map(jnp.add, dk, dk_tile)

        rest, total = own._replace(weights=None), own.weights
        rest, wide = loop(first, last, add, (rest, no_gradients(rule, k)))
        new, dw = _narrowed(rule, wide, narrow, weights)
        return rest._replace(weights=total + dw), added(dk, new, j)

    return loop(0, work.num_visits, add_block, (own, no_gradients(rule, keys)))


def expanded(rule: Rule, narrow: Keys, weights: jax.Array) -> Keys:
    """A narrow block with the keys and values that it stands for."""
    assert rule.expand is not None
    key, value = rule.expand(narrow.key.swapaxes(1, 2), weights)
    return narrow._replace(key=key.swapaxes(1, 2), value=value.swapaxes(1, 2))


def _narrowed(
    rule: Rule, wide: KeyGradients, narrow: Keys, weights: jax.Array
) -> tuple[KeyGradients, jax.Array]:
    """Gradients of a narrow block and of the weights from those of its keys and values."""
    assert rule.expand is not None
    key = narrow.key.swapaxes(1, 2)
    pull_back = jax.vjp(rule.expand, key, weights)[1]
    assert wide.value is not None
    tokens_first = (x.transpose(0, 3, 1, 2).astype(key.dtype) for x in (wide.key, wide.value))
    dk, dw = (x.astype(jnp.float32) for x in pull_back(tuple(tokens_first)))
    return KeyGradients(dk.transpose(0, 2, 3, 1), None, wide.index), dw
