"""The data of attention in blocks: queries, keys, what is summed, and who computes a tile.

All arrays have the blocks in front, so that a tile is one slice and ranks exchange whole blocks.
Legend: n blocks, B batch, K key/value heads, G queries per key/value head, t and s tokens of a
query and a key block, H and Hv widths of a query and a value head. One tile has no n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import jax

from parallelism.attention.blocks import AttentionMask
from parallelism.attention.plan import Plan

Expand = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""Narrow keys [B, S, 1, R] and weights [any, K, ...] to keys and values [B, S, K, ...]."""

NO_KEYS: Final = 1e30
"""The log-sum-exp of a row with nothing to attend to, so that exp(score - NO_KEYS) is zero."""


@dataclass(frozen=True)
class Rule:
    """How a score comes about and what computes it.

    `expand` makes keys and values from narrow keys, where those are what ranks exchange. Tokens of
    a block lie `step` apart; `groups` is G, `value_width` Hv. With `trains_index`, scores of the
    index are compared with the attention that they choose keys for (selection.py).
    """

    kernel: TileKernel
    expand: Expand | None
    mask: AttentionMask
    scale: float
    soft_cap: float | None
    groups: int
    value_width: int
    step: int
    keys_padded: bool
    trains_index: bool = False


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
    selecting: Any = None  # Selecting, [n, B, t, ...], or None


class Keys(NamedTuple):
    """Blocks of keys and values: what ranks exchange. Narrow ones have no values yet."""

    key: jax.Array  # [n, B, K, s, H]
    value: Any  # [n, B, K, s, Hv] or None
    segments: jax.Array | None  # int32 [n, B, s]
    positions: jax.Array | None  # int32 [n, B, s]
    index: Any = None  # [n, B, s, D] or None


class Run(NamedTuple):
    """The tokens of key blocks: start, start + step, ..., `length` of them."""

    start: jax.Array  # int32 [n]
    length: jax.Array  # int32 [n]


class Work(NamedTuple):
    """What one rank does with the keys it has: a stage of the plan, seen by that rank."""

    pairs: jax.Array  # int32 [P, 2]
    num_pairs: jax.Array | int
    visits: jax.Array  # int32 [V, 3]
    num_visits: jax.Array | int
    runs: Run


class Softmax(NamedTuple):
    """A running softmax: the output is `out / total`, and the maximum is subtracted in both."""

    maximum: jax.Array  # float32 [n, B, K, G*t]
    total: jax.Array  # float32 [n, B, K, G*t]
    out: jax.Array  # float32 [n, B, K, G*t, Hv]
    index: Any = None  # float32 [n, B, K, G*t]: index scores, weighted as the values are


class Saved(NamedTuple):
    """Blocks of queries with what the backward pass needs beside them."""

    queries: Queries
    lse: jax.Array  # float32 [n, B, K, G*t]
    delta: jax.Array  # float32 [n, B, K, G*t]: sum over Hv of output times its gradient
    out: jax.Array  # [n, B, K, G*t, Hv]
    out_gradient: jax.Array  # [n, B, K, G*t, Hv]
    index_gradient: Any = None  # float32 [n, B, t]: of the index loss


class KeyGradients(NamedTuple):
    """Float32 gradients of keys and values, tokens last: as CPUs multiply faster."""

    key: jax.Array  # [n, B, K, H, s]
    value: Any  # [n, B, K, Hv, s] or None
    index: Any = None  # [n, B, s, D] or None: tokens first


class OwnGradients(NamedTuple):
    """Float32 gradients of what does not travel."""

    query: jax.Array  # [n, B, K, G*t, H]
    weights: Any = None  # of `rule.expand`; None without it
    index: Any = None  # of index queries and weights, [n, B, t, I, D] and [n, B, t, I], or None


class TileKernel(Protocol):
    """What computes one tile: all that a block of queries has to do with a block of keys."""

    def add_tile(self, rule: Rule, old: Softmax, q: Queries, k: Keys, run: Run) -> Softmax:
        """Add the keys to the running softmax of the queries."""

    def tile_gradients(
        self, rule: Rule, q: Saved, k: Keys, run: Run
    ) -> tuple[OwnGradients, KeyGradients]:
        """Gradients of the queries, and of the keys and values; those of the index if trained."""
