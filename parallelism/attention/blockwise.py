"""Attention over planned block pairs in plain XLA, with a backward pass planned by hand.

One loop over the pairs of a plan computes everything: its body takes a block of queries and a block
of keys, and adds what they give to a running softmax (forward) or to the gradients (backward),
which recomputes the scores from what the forward pass kept, the output and the log-sum-exp. So
masked-out blocks cost nothing, a tile of scores stays in the cache, the compiler sees one body
whatever the length, and no array of S x S exists.

Everything here has the blocks in front, so that a tile is one slice and ranks exchange whole
blocks. Legend: n blocks, B batch, K key/value heads, G queries per key/value head, t and s tokens
of a query and a key block, H and Hv widths of a query and a value head. Scores, running softmax
and gradients are float32; matrix products take the dtype of the inputs.

Sources: the running softmax of Milakov and Gimelshein, 2018 (arXiv:1805.02867); the backward pass
of FlashAttention-2, Dao, 2023 (arXiv:2307.08691), section 3.1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parallelism.attention.plan import FAR, AttentionMask, Plan, Stage

# A masked score lies far below the least running maximum, so that exp(score - maximum) is zero even
# in a row where all is masked; and exp(score - NO_KEYS) is zero in the backward pass of such a row.
MASKED: Final = -2e30
FLOOR: Final = -1e30
NO_KEYS: Final = 1e30

TreeT = TypeVar("TreeT")


@dataclass(frozen=True)
class Rule:
    """How a score comes about. Tokens of a block lie `step` apart; `groups` is G."""

    mask: AttentionMask
    scale: float
    soft_cap: float | None
    groups: int
    step: int
    keys_padded: bool


@dataclass(frozen=True)
class Task:
    """What a strategy carries out, over the ranks of a mesh axis; None is a rank on its own."""

    rule: Rule
    plan: Plan
    axis: str | None


class Queries(NamedTuple):
    """Blocks of queries. Positions, if given, are compared in place of the static indices."""

    query: jax.Array  # [n, B, K, G*t, H]
    start: jax.Array  # int32 [n]
    segments: jax.Array | None  # int32 [n, B, t]
    positions: jax.Array | None  # int32 [n, B, t]


class Keys(NamedTuple):
    """Blocks of keys and values: what ranks exchange."""

    key: jax.Array  # [n, B, K, s, H]
    value: jax.Array  # [n, B, K, s, Hv]
    segments: jax.Array | None  # int32 [n, B, s]
    positions: jax.Array | None  # int32 [n, B, s]


class Run(NamedTuple):
    """The tokens of key blocks: start, start + step, ..., `length` of them."""

    start: jax.Array  # int32 [n]
    length: jax.Array  # int32 [n]


class Work(NamedTuple):
    """What one rank does with the keys it has: a stage of the plan, seen by that rank."""

    pairs: jax.Array  # int32 [P, 2]
    num_pairs: jax.Array | int
    runs: Run


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


class Softmax(NamedTuple):
    """A running softmax: the output is `out / total`, and the maximum is subtracted in both."""

    maximum: jax.Array  # float32 [n, B, K, G*t]
    total: jax.Array  # float32 [n, B, K, G*t]
    out: jax.Array  # float32 [n, B, K, G*t, Hv]


class Saved(NamedTuple):
    """Blocks of queries with what the backward pass needs beside them."""

    queries: Queries
    lse: jax.Array  # float32 [n, B, K, G*t]
    delta: jax.Array  # float32 [n, B, K, G*t]: sum over Hv of output times its gradient
    out_gradient: jax.Array  # [n, B, K, G*t, Hv]


class KeyGradients(NamedTuple):
    """Float32 gradients of keys and values, tokens last: as CPUs multiply faster."""

    key: jax.Array  # [n, B, K, H, s]; lacks the factor `rule.scale`
    value: jax.Array  # [n, B, K, Hv, s]


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
        q, k, old = _at(queries, i), _at(keys, j), _at(softmax, i)
        scores = _scores(rule, q, k, _at(work.runs, j))
        maximum = jnp.maximum(old.maximum, scores.max(-1))
        weights = jnp.exp(scores - maximum[..., None])
        decay = jnp.exp(old.maximum - maximum)
        new = Softmax(
            maximum,
            old.total * decay + weights.sum(-1),
            old.out * decay[..., None] + _product("bkts,bksh->bkth", weights, k.value),
        )
        return _put(softmax, new, i)

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
        dq_tile, dk_tile = _tile_gradients(rule, _at(saved, i), _at(keys, j), _at(work.runs, j))
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


def _tile_gradients(rule: Rule, q: Saved, k: Keys, run: Run) -> tuple[jax.Array, KeyGradients]:
    scores = _scores(rule, q.queries, k, run)
    weights = jnp.exp(scores - q.lse[..., None])
    by_weight = _product("bkth,bksh->bkts", q.out_gradient, k.value) - q.delta[..., None]
    by_score = weights * by_weight * _soft_cap_slope(rule, scores)
    return _product("bkts,bksh->bkth", by_score, k.key), KeyGradients(
        key=_product("bkth,bkts->bkhs", q.queries.query, by_score),
        value=_product("bkth,bkts->bkhs", q.out_gradient, weights),
    )


def _scores(rule: Rule, q: Queries, k: Keys, run: Run) -> jax.Array:
    """Masked scores of one tile, float32 [B, K, G*t, s]."""
    scores = rule.scale * _product("bkth,bksh->bkts", q.query, k.key)
    if rule.soft_cap is not None:
        scores = rule.soft_cap * jnp.tanh(scores / rule.soft_cap)
    conditions = list(_conditions(rule, q, k, run))
    if not conditions:
        return scores
    mask = functools.reduce(jnp.logical_and, conditions)
    return jnp.where(mask[:, None], scores, MASKED)


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
    return jnp.tile(tokens, (1, rule.groups))


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


def _at(tree: TreeT, block: jax.Array) -> TreeT:
    """One block of every array."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, block, keepdims=False), tree)


def _put(tree: TreeT, new: TreeT, block: jax.Array) -> TreeT:
    """The arrays with one block of each replaced."""
    return jax.tree.map(lambda x, y: lax.dynamic_update_index_in_dim(x, y, block, 0), tree, new)
