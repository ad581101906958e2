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

from collections.abc import Callable
from typing import Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parallelism.attention.plan import Stage
from parallelism.attention.tiles import (
    NO_KEYS,
    KeyGradients,
    Keys,
    Queries,
    Rule,
    Run,
    Saved,
    Softmax,
    Work,
)

FLOOR: Final = -1e30
"""The least running maximum; masked scores lie far below, so that exp(score - FLOOR) is zero."""

TreeT = TypeVar("TreeT")


def rank_work(stage: Stage, axis: str | None) -> Work:
    """This rank's part of a stage."""
    even = stage.even_count
    return Work(
        pairs=own_row(stage.pairs, axis),
        num_pairs=own_row(stage.count, axis) if even is None else even,
        runs=Run(own_row(stage.key_start, axis), jnp.asarray(stage.key_length)),
    )


def own_row(table: np.ndarray, axis: str | None) -> jax.Array:
    """The row of a table [C, ...] that belongs to this rank."""
    return jnp.asarray(table)[0 if axis is None else lax.axis_index(axis)]


def begin(query: jax.Array, value_width: int, sinks: jax.Array | None) -> Softmax:
    """The softmax over no keys, or over the sinks [K, G] alone: scores without a value."""
    rows = query.shape[:-1]
    out = jnp.zeros((*rows, value_width), jnp.float32)
    if sinks is None:
        return Softmax(jnp.full(rows, FLOOR), jnp.zeros(rows), out)
    block = rows[-1] // sinks.shape[1]
    scores = jnp.repeat(sinks.astype(jnp.float32), block, axis=1)
    return Softmax(jnp.broadcast_to(scores, rows), jnp.ones(rows), out)


def attend(rule: Rule, softmax: Softmax, queries: Queries, keys: Keys, work: Work) -> Softmax:
    """Add the pairs of `work` to a running softmax."""

    def add(i: jax.Array, j: jax.Array, softmax: Softmax) -> Softmax:
        q, k, run = _at(queries, i), _at(keys, j), _at(work.runs, j)
        return _put(softmax, rule.kernel.add_tile(rule, _at(softmax, i), q, k, run), i)

    return _for_each_pair(work, add, softmax)


def finish(softmax: Softmax) -> tuple[jax.Array, jax.Array]:
    """Output float32 [n, B, K, G*t, Hv], zero for a row without keys, and its log-sum-exp."""
    empty = softmax.total == 0
    total = jnp.where(empty, 1, softmax.total)
    lse = jnp.where(empty, NO_KEYS, softmax.maximum + jnp.log(total))
    return softmax.out / total[..., None], lse


def attend_backward(
    rule: Rule, query_gradient: jax.Array, saved: Saved, keys: Keys, work: Work
) -> tuple[jax.Array, KeyGradients]:
    """The gradients that the pairs of `work` give: of queries, added to those so far, and of keys.

    Those of queries, float32 too, lack the factor `rule.scale` as well.
    """

    def add(
        i: jax.Array, j: jax.Array, gradients: tuple[jax.Array, KeyGradients]
    ) -> tuple[jax.Array, KeyGradients]:
        dq, dk = gradients
        q, k, run = _at(saved, i), _at(keys, j), _at(work.runs, j)
        dq_tile, dk_tile = rule.kernel.tile_gradients(rule, q, k, run)
        dk_tile = jax.tree.map(jnp.add, _at(dk, j), dk_tile)
        return _put(dq, _at(dq, i) + dq_tile, i), _put(dk, dk_tile, j)

    return _for_each_pair(work, add, (query_gradient, _no_gradients(keys)))


def _for_each_pair(
    work: Work, add: Callable[[jax.Array, jax.Array, TreeT], TreeT], carry: TreeT
) -> TreeT:
    """Run `add(query block, key block, carry)` for all pairs.

    As a while loop: lax.scan would let JAX lift what does not change out of a loop over layers, and
    that is the masks of all pairs, S x S of them.
    """

    def body(state: tuple[jax.Array, TreeT]) -> tuple[jax.Array, TreeT]:
        pair, carry = state
        i, j = work.pairs[pair, 0], work.pairs[pair, 1]
        return pair + 1, add(i, j, carry)

    start = (jnp.int32(0), carry)
    return lax.while_loop(lambda state: state[0] < work.num_pairs, body, start)[1]


def _no_gradients(keys: Keys) -> KeyGradients:
    like = (x.swapaxes(-1, -2).shape for x in (keys.key, keys.value))
    return KeyGradients(*(jnp.zeros(shape, jnp.float32) for shape in like))


def _at(tree: TreeT, block: jax.Array) -> TreeT:
    """One block of every array."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, block, keepdims=False), tree)


def _put(tree: TreeT, new: TreeT, block: jax.Array) -> TreeT:
    """The arrays with one block of each replaced."""
    return jax.tree.map(lambda x, y: lax.dynamic_update_index_in_dim(x, y, block, 0), tree, new)
