"""Sparse attention: an indexer scores the keys of each query, which attends to the best alone.

What counts is a score of at least that half way between the best `top_k` and the next. It is one
number per query, so that nothing of size S x S is kept: each tile scores its pairs again, whatever
the strategy, and rounding that differs from program to program moves no key to the other side. Keys
that share the last place all count.

Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1.
Legend: B batch, T queries, S keys, I index heads, D their width; blocks have t queries or s keys.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from parallelism.attention.blocks import AttentionMask
from parallelism.attention.loops import block_of, loop, with_block
from parallelism.attention.setup import AttentionSetup

FLOOR: Final = -1e30
"""The least largest score."""


class Index(NamedTuple):
    """What scores keys: queries and weights of the index heads, and one index key per token."""

    query: Any  # [B, T, I, D]
    weights: Any  # float32 [B, T, I]
    key: Any  # [B, S, D]


class Selecting(NamedTuple):
    """What a query brings to find its keys again; blocks of it in tiles.py have n in front."""

    query: Any  # [B, t, I, D]
    weights: Any  # float32 [B, t, I]
    least: Any  # float32 [B, t]: the score that a key needs
    total: Any = None  # float32 [B, t]: log-sum-exp of the chosen keys' scores, if it is trained

    def scores(self, key_BsD: jax.Array) -> jax.Array:
        """The scores of some keys, float32 [B, t, s]."""
        return index_scores(self.query, self.weights, key_BsD)


class Numbered(NamedTuple):
    """Where tokens are: the index in the row that a mask compares, and the segment."""

    position: Any  # int32 [B, T]
    segment: Any  # int32 [B, T] or None


def index_scores(query: jax.Array, weights: jax.Array, key: jax.Array) -> jax.Array:
    """The sum over index heads of weight times ReLU of the product: float32 [B, t, s]."""
    products = jnp.einsum("btid,bsd->bits", query, key, preferred_element_type=jnp.float32)
    return jnp.einsum("bti,bits->bts", weights, jax.nn.relu(products))


@jax.named_scope("index")
def choose(
    index: Index,
    numbered: tuple[Numbered, Numbered],
    mask: AttentionMask,
    setup: AttentionSetup,
) -> tuple[jax.Array, jax.Array]:
    """The score that a key needs, and the log-sum-exp of those that reach it: float32 [B, T] each.

    The first is -inf where the mask leaves top_k keys or fewer, the second 0 where it leaves none.
    Every rank scores the keys of all tokens, which it gathers, against its own queries. Not
    differentiable: which keys are best does not change with a small step.
    """
    index = jax.tree.map(lax.stop_gradient, index)
    axis = setup.exchange_axis
    body = functools.partial(_choose_in_shard, mask=mask, axis=axis, block_size=setup.block_size)
    if setup.mesh is None:
        return body(index, numbered)
    tokens = P(*setup.spec(index.query.shape[0], 1)[:2])
    specs = jax.tree.map(lambda _: tokens, (index, numbered))
    run = jax.shard_map(body, mesh=setup.mesh, in_specs=specs, out_specs=tokens, check_vma=False)
    chosen: tuple[jax.Array, jax.Array] = run(index, numbered)
    return chosen


def _choose_in_shard(
    index: Index,
    numbered: tuple[Numbered, Numbered],
    *,
    mask: AttentionMask,
    axis: str | None,
    block_size: int,
) -> tuple[jax.Array, jax.Array]:
    """One rank's part, block of queries by block of queries."""
    top_k = mask.top_k
    assert top_k is not None
    own, others = (index.query, index.weights, numbered[0]), (index.key, numbered[1])
    if axis is not None:
        with jax.named_scope("exchange"):
            others = jax.tree.map(lambda x: lax.all_gather(x, axis, axis=1, tiled=True), others)
    num_queries, num_keys = index.query.shape[1], others[0].shape[1]
    queries, keys = _blocks(own, block_size), _blocks(others, block_size)
    num_key_blocks, _, s, _ = keys[0].shape
    num_blocks, batch, t = queries[2].position.shape

    def of_queries(i: jax.Array, chosen: tuple[jax.Array, jax.Array]) -> Any:
        block = block_of(queries, i)

        def of_keys(j: jax.Array, scores: jax.Array) -> jax.Array:
            return with_block(scores, _masked_scores(block, block_of(keys, j), mask), j)

        scores = jnp.full((num_key_blocks, batch, t, s), -jnp.inf)
        scores = loop(0, num_key_blocks, of_keys, scores)
        row = scores.transpose(1, 2, 0, 3).reshape(batch, t, -1)[..., :num_keys]
        least = least_of_best(row, top_k)
        return with_block(chosen, (least, _log_sum(row, least)), i)

    zeros = jnp.zeros((num_blocks, batch, t))
    chosen = loop(0, num_blocks, of_queries, (zeros, zeros))
    least, total = (x.swapaxes(0, 1).reshape(batch, -1)[:, :num_queries] for x in chosen)
    return least, total


def _log_sum(scores: jax.Array, least: jax.Array) -> jax.Array:
    """Log of the sum of exponentials of the scores that are high enough; 0 if none is."""
    reaches = (scores >= least[..., None]) & ~jnp.isneginf(scores)
    largest = jnp.max(scores, axis=-1, initial=FLOOR, where=reaches)
    total = jnp.sum(jnp.exp(scores - largest[..., None]), axis=-1, where=reaches)
    return jnp.where(total > 0, largest + jnp.log(jnp.maximum(total, 1)), 0.0)


def _masked_scores(queries: Any, keys: Any, mask: AttentionMask) -> jax.Array:
    """Scores [B, t, s], -inf where the mask or the segments forbid; not computed if all is."""
    (query, weights, (position, segment)), (key, (key_position, key_segment)) = queries, keys
    low, high = mask.reach
    distance = position[:, :, None] - key_position[:, None, :]
    allowed = (distance >= low) & (distance <= high)
    if segment is not None:
        allowed &= (segment[:, :, None] == key_segment[:, None, :]) & (segment > 0)[:, :, None]

    def scores() -> jax.Array:
        return jnp.where(allowed, index_scores(query, weights, key), -jnp.inf)

    return lax.cond(allowed.any(), scores, lambda: jnp.full(allowed.shape, -jnp.inf))


def _blocks(tree: Any, block_size: int) -> Any:
    """[B, T, ...] -> [n, B, t, ...] with t at most `block_size`; the last one ends in zeros."""

    def cut(x: jax.Array) -> jax.Array:
        batch, length, *rest = x.shape
        number = math.ceil(length / block_size)
        size = math.ceil(length / number)
        x = jnp.pad(x, [(0, 0), (0, number * size - length)] + [(0, 0)] * len(rest))
        return x.reshape(batch, number, size, *rest).swapaxes(0, 1)

    return jax.tree.map(cut, tree)


def least_of_best(scores: jax.Array, count: int) -> jax.Array:
    """Half way from the `count`-th best of the last dimension to the next; -inf if there is none.

    float32 [..., S] -> [...]. Found bit by bit, without sorting.
    """
    if scores.shape[-1] <= count:
        return jnp.full(scores.shape[:-1], -jnp.inf)
    last = _kth_best(scores, count)
    after = jnp.max(scores, axis=-1, initial=-jnp.inf, where=scores < last[..., None])
    between = last / 2 + after / 2
    between = jnp.where(between > after, between, last)  # neighbours have nothing between them
    return jnp.where(jnp.isneginf(after), after, between)


def _kth_best(scores: jax.Array, k: int) -> jax.Array:
    """The k-th largest of float32 [..., S], exactly: the greatest number that k of them reach."""
    keys = _as_ordered(scores)

    def add_bit(bit: jax.Array, found: jax.Array) -> jax.Array:
        tried = found | (jnp.uint32(1 << 31) >> bit.astype(jnp.uint32))
        reached = jnp.sum(keys >= tried[..., None], axis=-1, dtype=jnp.int32)
        return jnp.where(reached >= k, tried, found)

    return _from_ordered(loop(0, 32, add_bit, jnp.zeros(scores.shape[:-1], jnp.uint32)))


_SIGN: Final = np.uint32(1 << 31)


def _as_ordered(x: jax.Array) -> jax.Array:
    """Unsigned integers in the order of the floats."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits & _SIGN, ~bits, bits | _SIGN)


def _from_ordered(bits: jax.Array) -> jax.Array:
    bits = jnp.where(bits & _SIGN, bits ^ _SIGN, ~bits)
    return lax.bitcast_convert_type(bits, jnp.float32)
