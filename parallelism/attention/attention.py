"""Attention: one call, whatever the strategy, the layout, the mask and the mesh.

Legend: B batch, T queries, S keys (T = S unless positions are given), N query heads, K key/value
heads, G = N/K, H and Hv widths of a query and of a value head.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from parallelism.attention import all_gather, ring, ulysses
from parallelism.attention.blockwise import Rule, Task
from parallelism.attention.plan import AttentionMask, Plan, plan_attention
from parallelism.attention.sharded import Inputs, Problem, Tokens, attend_sharded
from parallelism.attention.tiling import repeat_heads
from parallelism.layout import Layout

STRATEGIES: Final = ("all_gather", "ring", "ulysses")

PerToken = jax.Array | tuple[jax.Array, jax.Array]
"""int32 [B, T]; or that for queries and int32 [B, S] for keys."""


@dataclass(frozen=True, kw_only=True)
class AttentionSetup:
    """Where and how attention is computed; `mesh` None is one device.

    `layout` is the order in which the sequence comes; with a mesh, its `cp` is the size of
    `context_axis`. `block_size` is the most tokens on a side of a tile.
    """

    layout: Layout
    mesh: Mesh | None = None
    strategy: str = "all_gather"
    kernel: str = "auto"
    block_size: int = 128
    batch_axes: tuple[str, ...] = ("data", "fsdp")
    context_axis: str = "context"
    heads_axis: str = "tensor"

    def axis_size(self, axis: str | None) -> int:
        """Size of a mesh axis; 1 where it is not there."""
        return 1 if self.mesh is None else dict(self.mesh.shape).get(axis, 1)

    @property
    def exchanges_heads(self) -> bool:
        """Whether ranks share heads while they attend, and not tokens."""
        return self.strategy == "ulysses" and self.axis_size(self.context_axis) > 1

    @property
    def exchange_axis(self) -> str | None:
        """The mesh axis over which keys and values are exchanged, if they are."""
        alone = self.exchanges_heads or self.axis_size(self.context_axis) == 1
        return None if alone else self.context_axis

    def spec(self, batch: int, num_heads: int) -> P:
        """How [B, T, N] is sharded; an axis that does not divide is left out."""
        batch_axes: tuple[str, ...] = self.batch_axes
        while batch % math.prod(map(self.axis_size, batch_axes)) != 0:
            batch_axes = batch_axes[:-1]
        heads = self.heads_axis if num_heads % self.axis_size(self.heads_axis) == 0 else None
        names = () if self.mesh is None else self.mesh.axis_names
        return P(
            tuple(axis for axis in batch_axes if axis in names),
            self.context_axis if self.context_axis in names else None,
            heads if heads in names else None,
        )


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: AttentionMask,
    setup: AttentionSetup,
    segment_ids: PerToken | None = None,
    positions: PerToken | None = None,
    sinks: jax.Array | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> jax.Array:
    """Attend from each query to the keys that the mask allows: [B, T, N, Hv] in the query's dtype.

    `query` [B, T, N, H], `key` [B, S, K, H] and `value` [B, S, K, Hv] share a dtype and come in the
    order of `setup.layout`; query head n reads key/value head n // G. Differentiable in all three
    and in `sinks`. A query with nothing to attend to gives zeros, and so do its gradients.

    `segment_ids` int32 [B, T]: a token attends within its segment only, and segment 0, padding, to
    nothing. `positions` int32 [B, T]: what `mask` compares in place of the tokens' indices in the
    unfolded row; then no block can be left out. Either may be a pair, for queries and for keys.
    `sinks` [N]: a score per head that joins the softmax and has no value. `scale` defaults to
    1/sqrt(H); `soft_cap` c turns a scaled score x into c * tanh(x / c).

    Raises ValueError where shapes, layout and mesh do not fit together.
    """
    _check(query, key, value, setup)
    if query.shape[1] != key.shape[1] and positions is None:
        raise ValueError(f"{query.shape[1]} queries, {key.shape[1]} keys: positions are needed")
    spec = setup.spec(query.shape[0], query.shape[2])
    shared = ulysses.by_heads(spec) if setup.exchanges_heads else spec
    ways = _ways(setup, shared, query.shape[2])
    copies = ways // math.gcd(key.shape[2], ways)
    key, value = repeat_heads(key, copies), repeat_heads(value, copies)
    planned = mask if positions is None else AttentionMask(causal=False)
    plan = _plan(setup, query.shape[1], key.shape[1], planned)
    rule = Rule(
        mask=mask,
        scale=1 / math.sqrt(query.shape[3]) if scale is None else scale,
        soft_cap=soft_cap,
        groups=query.shape[2] // key.shape[2],
        step=plan.key.step,
        keys_padded=plan.key.padded,
    )
    strategy = ring if setup.strategy == "ring" else all_gather
    problem = Problem(Task(rule, plan, setup.exchange_axis), strategy, setup.mesh, shared)
    tokens = (_per_token(segment_ids), _per_token(positions))
    inputs = Inputs(query, key, value, *tokens, sinks)
    if setup.exchanges_heads:
        return ulysses.attend_by_heads(problem, inputs, spec)
    return attend_sharded(problem, inputs)


def _ways(setup: AttentionSetup, spec: P, num_heads: int) -> int:
    """How many ways `spec` shares the heads; ValueError if the query heads do not divide."""
    heads = spec[2] if isinstance(spec[2], tuple) else (spec[2],)
    ways = math.prod(setup.axis_size(axis) for axis in heads)
    if num_heads % ways != 0:
        raise ValueError(
            f"ulysses shares the heads among {ways} ranks of {' * '.join(heads)}, which does not "
            f"divide {num_heads} query heads; all_gather and ring take any number"
        )
    return ways


def _plan(setup: AttentionSetup, num_queries: int, num_keys: int, mask: AttentionMask) -> Plan:
    query, key = (setup.layout.chunks(length) for length in (num_queries, num_keys))
    if setup.exchange_axis is None:  # one rank has it all, in the same order
        query, key = ((tuple(itertools.chain(*ranks)),) for ranks in (query, key))
    return plan_attention(query, key, mask, setup.block_size, setup.strategy)


def _check(query: jax.Array, key: jax.Array, value: jax.Array, setup: AttentionSetup) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if {query.ndim, key.ndim, value.ndim} != {4}:
        raise ValueError(f"attention takes [batch, tokens, heads, width]; got {shapes}")
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        raise ValueError(f"batch, tokens or heads differ: {shapes}")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"queries and keys differ in width: {shapes}")
    if query.shape[2] % key.shape[2] != 0:
        raise ValueError(f"query heads are no multiple of key/value heads: {shapes}")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"dtypes differ: {query.dtype}, {key.dtype}, {value.dtype}")
    cp = setup.axis_size(setup.context_axis)
    if cp not in (1, setup.layout.cp):
        raise ValueError(f"the layout has cp={setup.layout.cp}, the mesh {setup.context_axis}={cp}")


def _per_token(tokens: PerToken | None) -> Tokens | None:
    """The same numbers for queries and keys, unless they come as a pair."""
    if tokens is None:
        return None
    return Tokens(*tokens) if isinstance(tokens, tuple) else Tokens(tokens, tokens)
