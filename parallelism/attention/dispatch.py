"""Attention: one call, whatever the strategy, the layout, the mask, the kernel and the mesh.

Legend: B batch, T queries, S keys (T = S unless positions are given), N query heads, K key/value
heads, G = N/K, H and Hv widths of a query and of a value head.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax

from parallelism.attention import all_gather, ring, ulysses, xla
from parallelism.attention.plan import AttentionMask, Plan, plan_attention
from parallelism.attention.setup import AttentionSetup
from parallelism.attention.sharded import Inputs, Problem, Tokens, attend_sharded
from parallelism.attention.support import Request, choose_kernel
from parallelism.attention.tiles import Rule, Task
from parallelism.attention.tiling import repeat_heads
from parallelism.layout import Chunk

PerToken = jax.Array | tuple[jax.Array, jax.Array]
"""int32 [B, T]; or that for queries and int32 [B, S] for keys."""


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

    Raises ValueError where shapes, layout and mesh do not fit together, and by name for what the
    kernel or the strategy cannot do (see support.py).
    """
    tokens = (_per_token(segment_ids), _per_token(positions))
    inputs = Inputs(query, key, value, *tokens, sinks)
    _check(inputs, setup)
    batch, num_heads = query.shape[0], query.shape[2]
    request = Request(
        mask=mask,
        segments=segment_ids is not None,
        positions=positions is not None,
        sinks=sinks is not None,
        soft_cap=soft_cap is not None,
        seq_len=query.shape[1],
        num_heads=num_heads,
        head_dim=query.shape[3],
        dtype=query.dtype.name,
    )
    kernel = choose_kernel(setup, request)
    ways = setup.ways(setup.attending_spec(batch, num_heads)[2])
    copies = ways // math.gcd(key.shape[2], ways)
    inputs = inputs._replace(key=repeat_heads(key, copies), value=repeat_heads(value, copies))
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    build = _by_splash if kernel == "splash" else _by_tiles
    core = build(setup, kernel, mask, inputs, (scale, soft_cap))
    if setup.exchanges_heads:
        return ulysses.attend_by_heads(core, inputs, setup)
    return core(inputs)


Core = Callable[[Inputs], jax.Array]
"""Attention of arrays that are in the layout and sharded as they are needed."""


def _by_tiles(
    setup: AttentionSetup,
    kernel: str,
    mask: AttentionMask,
    inputs: Inputs,
    scores: tuple[float, float | None],
) -> Core:
    """Attention by planned tiles, in XLA or cuDNN."""
    tile_kernel: Any = xla
    if kernel == "cudnn":
        from parallelism.attention import cudnn as tile_kernel
    planned = mask if inputs.positions is None else AttentionMask(causal=False)
    plan = _plan(setup, inputs, planned, whole_chunks=kernel == "cudnn")
    rule = Rule(
        kernel=tile_kernel,
        mask=mask,
        scale=scores[0],
        soft_cap=scores[1],
        groups=inputs.query.shape[2] // inputs.key.shape[2],
        step=plan.key.step,
        keys_padded=plan.key.padded,
    )
    spec = setup.attending_spec(inputs.query.shape[0], inputs.query.shape[2])
    strategy = ring if setup.strategy == "ring" else all_gather
    problem = Problem(Task(rule, plan, setup.exchange_axis), strategy, setup.mesh, spec)
    return functools.partial(attend_sharded, problem)


def _by_splash(
    setup: AttentionSetup,
    kernel: str,
    mask: AttentionMask,
    inputs: Inputs,
    scores: tuple[float, float | None],
) -> Core:
    """Attention by JAX's splash kernel, which takes a while to import."""
    from parallelism.attention import splash

    del kernel
    problem = splash.SplashProblem(
        mask=mask,
        layout=setup.layout,
        scale=scores[0],
        soft_cap=scores[1],
        mesh=setup.mesh,
        spec=setup.attending_spec(inputs.query.shape[0], inputs.query.shape[2]),
        axis=setup.exchange_axis,
    )
    return functools.partial(splash.attend_splash, problem)


def _plan(
    setup: AttentionSetup, inputs: Inputs, mask: AttentionMask, *, whole_chunks: bool
) -> Plan:
    def chunks(length: int) -> tuple[tuple[Chunk, ...], ...]:
        ranks = setup.layout.chunks(length)
        if setup.exchange_axis is not None:
            return ranks
        return (tuple(itertools.chain(*ranks)),)  # one rank has it all, in the same order

    query, key = chunks(inputs.query.shape[1]), chunks(inputs.key.shape[1])
    block_size = key[0][0].length if whole_chunks else setup.block_size
    return plan_attention(query, key, mask, block_size, setup.strategy)


def _check(inputs: Inputs, setup: AttentionSetup) -> None:
    query, key, value = inputs[:3]
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
    if query.shape[1] != key.shape[1] and inputs.positions is None:
        raise ValueError(f"{query.shape[1]} queries, {key.shape[1]} keys: positions are needed")
    cp = setup.axis_size(setup.context_axis)
    if cp not in (1, setup.layout.cp):
        raise ValueError(f"the layout has cp={setup.layout.cp}, the mesh {setup.context_axis}={cp}")


def _per_token(tokens: PerToken | None) -> Tokens | None:
    """The same numbers for queries and keys, unless they come as a pair."""
    if tokens is None:
        return None
    return Tokens(*tokens) if isinstance(tokens, tuple) else Tokens(tokens, tokens)
