"""Attention: one call, whatever the strategy, the layout, the mask, the kernel and the mesh.

Legend: B batch, T queries, S keys (T = S unless positions are given), N query heads, K key/value
heads, G = N/K, H and Hv widths of a query and of a value head.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parallelism.attention import all_gather, ring, ulysses, xla
from parallelism.attention.blocks import AttentionMask
from parallelism.attention.plan import Plan, plan_attention
from parallelism.attention.selection import Index, Numbered, Selecting, choose
from parallelism.attention.setup import AttentionSetup
from parallelism.attention.sharded import Inputs, Outputs, Problem, Tokens, attend_sharded
from parallelism.attention.support import Request, choose_kernel
from parallelism.attention.tiles import Expand, Rule, Task
from parallelism.attention.tiling import repeat_heads
from parallelism.layout import Chunk

PerToken = jax.Array | tuple[jax.Array, jax.Array]
"""int32 [B, T]; or that for queries and int32 [B, S] for keys."""


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array | None,
    *,
    mask: AttentionMask,
    setup: AttentionSetup,
    segment_ids: PerToken | None = None,
    positions: PerToken | None = None,
    sinks: jax.Array | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    expand: Expand | None = None,
    weights: jax.Array | None = None,
    index: Index | None = None,
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

    Latent attention: with `value` None, `key` is narrow, [B, S, 1, R], and `expand(key, weights)`
    makes keys and values of some tokens of it; dimension 1 of `weights` is heads. Then only narrow
    keys travel between ranks, and they are expanded a block at a time, backward again.

    Sparse attention: with `mask.top_k`, `index` scores the keys that each query may attend to, and
    it attends to the `top_k` best of them (selection.py). No gradient goes through that choice:
    `attention_and_index_loss` gives what an index is trained by.

    Raises ValueError where shapes, layout and mesh do not fit together, and by name for what the
    kernel or the strategy cannot do (see support.py).
    """
    tokens = (_per_token(segment_ids), _per_token(positions))
    inputs = Inputs(query, key, value, *tokens, sinks, weights)
    return _attend(inputs, Scores(mask, scale, soft_cap, expand), index, setup).out


def attention_and_index_loss(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array | None,
    *,
    mask: AttentionMask,
    setup: AttentionSetup,
    index: Index,
    segment_ids: PerToken | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    expand: Expand | None = None,
    weights: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """As `attention`, with the loss of the index for each query, float32 [B, T].

    It is the cross entropy of the index's shares of the chosen keys, a softmax over its scores,
    against the attention's, mean over heads; 0 where there is nothing to attend to. Its gradient
    goes to the index alone, and that of the output does not.
    """
    inputs = Inputs(query, key, value, _per_token(segment_ids), weights=weights)
    scores = Scores(mask, scale, soft_cap, expand, trains_index=True)
    given = _attend(inputs, scores, index, setup)
    return given.out, given.index_loss


def _attend(inputs: Inputs, scores: Scores, index: Index | None, setup: AttentionSetup) -> Outputs:
    wide = _key_value_shapes(inputs, scores.expand)
    _check(inputs, *wide, setup)
    heads = Heads(inputs.query.shape[2], wide[0].shape[2], wide[1].shape[3])
    kernel = choose_kernel(setup, _request(inputs, scores))
    inputs, heads = _shareable(_selecting(inputs, index, scores.mask, setup), heads, setup)
    if kernel == "splash":
        core = _by_splash(setup, inputs, scores)
    else:
        core = _by_tiles(setup, inputs, scores, heads, kernel)
    if setup.exchanges_heads:
        return ulysses.attend_by_heads(core, inputs, setup)
    return core(inputs)


def _shareable(inputs: Inputs, heads: Heads, setup: AttentionSetup) -> tuple[Inputs, Heads]:
    """With as many copies of key/value heads as it takes for ranks to share them."""
    batch, num_kv_heads = inputs.query.shape[0], heads.num_kv_heads
    ways = setup.ways(setup.attending_spec(batch, heads.num_heads)[2])
    copies = ways // math.gcd(num_kv_heads, ways)
    if copies == 1:
        return inputs, heads
    if inputs.value is None:
        raise ValueError(f"{ways} ranks do not divide {num_kv_heads} expanded heads")
    key, value = (repeat_heads(x, copies) for x in (inputs.key, inputs.value))
    inputs = inputs._replace(key=key, value=value)
    return inputs, heads._replace(num_kv_heads=copies * num_kv_heads)


class Scores(NamedTuple):
    """How scores come about; a scale of None is 1/sqrt(H)."""

    mask: AttentionMask
    scale: float | None
    soft_cap: float | None
    expand: Expand | None
    trains_index: bool = False


class Heads(NamedTuple):
    """N, K and Hv."""

    num_heads: int
    num_kv_heads: int
    value_width: int


Core = Callable[[Inputs], Outputs]
"""Attention of arrays that are sharded as ranks need them."""


def _by_tiles(
    setup: AttentionSetup, inputs: Inputs, scores: Scores, heads: Heads, kernel: str
) -> Core:
    """Attention by planned tiles, in XLA or cuDNN."""
    tile_kernel: Any = xla
    if kernel == "cudnn":
        from parallelism.attention import cudnn as tile_kernel
    planned = scores.mask if inputs.positions is None else AttentionMask(causal=False)
    plan = _plan(setup, inputs, planned, whole_chunks=kernel == "cudnn")
    rule = Rule(
        kernel=tile_kernel,
        expand=scores.expand,
        mask=scores.mask,
        scale=_scale(scores, inputs),
        soft_cap=scores.soft_cap,
        groups=heads.num_heads // heads.num_kv_heads,
        value_width=heads.value_width,
        step=plan.key.step,
        keys_padded=plan.key.padded,
        trains_index=scores.trains_index,
    )
    spec = setup.attending_spec(inputs.query.shape[0], heads.num_heads)
    strategy = ring if setup.strategy == "ring" else all_gather
    task = Task(rule, plan, setup.exchange_axis)
    narrow_axis = None if scores.expand is None else setup.narrow_axis
    problem = Problem(task, strategy, setup.mesh, spec, narrow_axis)
    return functools.partial(attend_sharded, problem)


def _by_splash(setup: AttentionSetup, inputs: Inputs, scores: Scores) -> Core:
    """Attention by JAX's splash kernel, which takes a while to import."""
    from parallelism.attention import splash

    problem = splash.SplashProblem(
        mask=scores.mask,
        layout=setup.layout,
        scale=_scale(scores, inputs),
        soft_cap=scores.soft_cap,
        mesh=setup.mesh,
        spec=setup.attending_spec(inputs.query.shape[0], inputs.query.shape[2]),
        axis=setup.exchange_axis,
        expand=scores.expand,
        narrow_axis=None if scores.expand is None else setup.narrow_axis,
    )
    return lambda inputs: Outputs(splash.attend_splash(problem, inputs))


def _scale(scores: Scores, inputs: Inputs) -> float:
    return 1 / math.sqrt(inputs.query.shape[3]) if scores.scale is None else scores.scale


def _selecting(
    inputs: Inputs, index: Index | None, mask: AttentionMask, setup: AttentionSetup
) -> Inputs:
    """With what finds the chosen keys of each query again, if the mask chooses any."""
    if index is None and mask.top_k is None:
        return inputs
    if index is None or mask.top_k is None:
        raise ValueError(f"mask.top_k={mask.top_k}: an index and top_k go together")
    lengths = inputs.query.shape[1], inputs.key.shape[1]
    shapes = ((inputs.query.shape[0], length) for length in lengths)
    order = (jnp.broadcast_to(setup.layout.permutation(s[1]), s) for s in shapes)
    positions = inputs.positions or Tokens(*order)
    segments = inputs.segments or Tokens(None, None)
    query, key = map(Numbered, positions, segments)
    least, total = choose(index, (query, key), mask, setup)
    selecting = Selecting(index.query, index.weights, least, total)
    return inputs._replace(selecting=selecting, index=index.key)


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


def _request(inputs: Inputs, scores: Scores) -> Request:
    return Request(
        mask=scores.mask,
        segments=inputs.segments is not None,
        positions=inputs.positions is not None,
        sinks=inputs.sinks is not None,
        soft_cap=scores.soft_cap,
        seq_len=inputs.query.shape[1],
        num_heads=inputs.query.shape[2],
        head_dim=inputs.query.shape[3],
        dtype=inputs.query.dtype.name,
    )


def _key_value_shapes(inputs: Inputs, expand: Expand | None) -> tuple[Any, Any]:
    """Shapes and dtypes of keys and values, expanded if they are narrow."""
    if expand is None:
        if inputs.value is None:
            raise ValueError("value is None, and there is no expand to make values from keys")
        return inputs.key, inputs.value
    if inputs.value is not None or inputs.weights is None:
        raise ValueError("with expand, value has to be None and weights have to be given")
    return jax.eval_shape(expand, inputs.key, inputs.weights)


def _check(inputs: Inputs, key: Any, value: Any, setup: AttentionSetup) -> None:
    query = inputs.query
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
