"""Attention on TPU by JAX's splash kernel, over folded sequences as they lie.

Splash takes a mask as a function of (query index, key slot) and skips blocks that it leaves empty.
So the gathered keys and values of a folded sequence stay in their order, and the mask says which
tokens they are. Ranks that exchange keys gather those of a few heads at a time, about as much as
they hold themselves; the backward pass gathers again and sums the gradients that the ranks give in
float32. Latents are gathered whole, and a few heads' keys and values expanded at a time.

Why JAX's splash and not Tokamax's: it comes with JAX, and takes windows, segments, sinks, soft caps
and such masks as well. Neither takes positions that are known only when the program runs.

Legend: B batch, T queries of a rank, S keys of all ranks, N query heads, K key/value heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as splash_mask,
)
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.attention_support import LANES
from parallelism.attention.blocks import AttentionMask
from parallelism.attention.folded_mask import FoldedMask
from parallelism.attention.sharded import Inputs
from parallelism.attention.tiles import Expand
from parallelism.layout import Layout

LARGEST_BLOCK: Final = 512
LEAST_GATHERED: Final = 2**23
"""Bytes of keys, with values as many again, that are gathered in one go whatever the ranks."""

_KEEP_OUTPUT: Final = jax.checkpoint_policies.save_only_these_names("attention_out")


@dataclass(frozen=True)
class SplashProblem:
    """All that is static about one attention; `spec` shards [B, T, N] over `mesh`."""

    mask: AttentionMask
    layout: Layout
    scale: float
    soft_cap: float | None
    mesh: Mesh | None
    spec: P
    axis: str | None  # over which keys and values are gathered
    expand: Expand | None = None
    narrow_axis: str | None = None  # over which narrow keys are, where `spec` shares heads over it
    interpret: bool = False
    least_gathered: int = LEAST_GATHERED

    def parts(self, inputs: Inputs) -> int:
        """How many parts the key/value heads of a rank are gathered, or expanded, in."""
        if self.axis is None:
            return 1
        batch, seq_len, width = inputs.query.shape[0], inputs.key.shape[1], inputs.query.shape[3]
        all_heads = inputs.key.shape[2] if self.expand is None else inputs.weights.shape[1]
        heads = all_heads // _ways(self.mesh, self.spec[2])
        rows = batch // _ways(self.mesh, self.spec[0])
        size = rows * seq_len * width * inputs.query.dtype.itemsize
        most = min(self.layout.cp, heads * size // self.least_gathered)
        return max(d for d in range(1, max(most, 1) + 1) if heads % d == 0)


def attend_splash(problem: SplashProblem, inputs: Inputs) -> jax.Array:
    """Attention [B, T, N, Hv] over whole arrays, in the dtype of the query."""
    kernel = _kernel(problem, inputs)
    # The backward pass starts from the output and its log-sum-exp, and gathers keys anew.
    shard = functools.partial(_attend_shard, problem, problem.parts(inputs))
    body = jax.checkpoint(shard, policy=_KEEP_OUTPUT)
    # Sequences of one length have one array of segment ids.
    segments = None if inputs.segments is None else inputs.segments.query
    arrays = (inputs.query, inputs.key, inputs.value, inputs.weights)
    if problem.mesh is None:
        return body(kernel, arrays, segments, inputs.sinks)
    batch, sequence, heads = problem.spec
    keys = problem.spec if problem.expand is None else P(batch, sequence or problem.narrow_axis)
    array_specs = (problem.spec, keys, keys, P(None, heads))
    kernel_spec = kernel.manual_sharding_spec(NamedSharding(problem.mesh, P(heads, sequence)))
    out: jax.Array = jax.shard_map(
        body,
        mesh=problem.mesh,
        in_specs=(kernel_spec, array_specs, P(batch, sequence), P(heads)),
        out_specs=problem.spec,
        check_vma=False,
    )(kernel, arrays, segments, inputs.sinks)
    return out


def _kernel(problem: SplashProblem, inputs: Inputs) -> Any:
    """The splash kernel for the whole sequence and all heads."""
    seq_len, num_heads = inputs.query.shape[1], inputs.query.shape[2] // problem.parts(inputs)
    sequence, heads = problem.spec[1:]
    num_ranks = problem.layout.cp if sequence is not None else 1
    block = block_size(seq_len, problem.layout)
    mask = FoldedMask(problem.mask, problem.layout, seq_len)
    return splash.make_splash_mha(
        splash_mask.MultiHeadMask([mask] * num_heads),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        head_shards=_ways(problem.mesh, heads),
        q_seq_shards=num_ranks,
        attn_logits_soft_cap=problem.soft_cap,
        residual_checkpoint_name="attention_out",
        interpret=problem.interpret,
    )


def block_size(seq_len: int, layout: Layout) -> int:
    """The largest legal block that divides a chunk, or else a rank's shard; 0 if there is none."""
    for length in (seq_len // layout.multiple, seq_len // layout.cp):
        blocks = range(min(LARGEST_BLOCK, length) // LANES * LANES, 0, -LANES)
        fitting = [block for block in blocks if length % block == 0]
        if fitting:
            return fitting[0]
    return 0


def _ways(mesh: Mesh | None, axes: Any) -> int:
    """How many ways a dimension is sharded over some mesh axes."""
    names = axes if isinstance(axes, tuple) else (axes,)
    sizes = {} if mesh is None else dict(mesh.shape)
    return int(np.prod([sizes.get(name, 1) for name in names]))


def _attend_shard(
    problem: SplashProblem,
    parts: int,
    kernel: Any,
    arrays: tuple[jax.Array, Any, Any, Any],
    segments: jax.Array | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """Output [B, T, N, Hv] of one rank's queries."""
    query, key, value, weights = arrays
    query = (problem.scale * query.astype(jnp.float32)).astype(query.dtype)
    ids, narrow = None, None
    if segments is not None:
        everyone = segments if problem.axis is None else _all(segments, problem.axis)
        ids = splash.SegmentIds(segments, everyone)
    if problem.expand is not None:
        narrow, key = _gathered(key, problem.axis or problem.narrow_axis), None

    def some_heads(heads: _Heads) -> jax.Array:
        if problem.expand is not None and narrow is not None:
            pair = problem.expand(narrow, heads.weights)
        else:
            pair = jax.tree.map(lambda x: _gathered(x, problem.axis), (heads.key, heads.value))
        by_head = tuple(x.swapaxes(1, 2) for x in (heads.query, *pair))
        attend = jax.vmap(lambda qkv, ids: kernel(*qkv, ids, heads.sinks))
        return attend(by_head, ids).swapaxes(1, 2)

    out = _in_parts(some_heads, _Heads(query, key, value, weights, sinks), parts)
    # To splash, padding (segment 0) is a segment like any other.
    return out if segments is None else jnp.where(segments[:, :, None, None] == 0, 0, out)


class _Heads(NamedTuple):
    """What belongs to some heads; or, in place of an array, the dimension that is heads."""

    query: Any
    key: Any
    value: Any
    weights: Any
    sinks: Any


_HEAD_DIMS: Final = _Heads(query=2, key=2, value=2, weights=1, sinks=0)


def _in_parts(attend: Callable[[_Heads], jax.Array], heads: _Heads, parts: int) -> jax.Array:
    """`attend` on one part of the heads after the other; each gathers anew when it is reversed."""
    if parts == 1:
        return attend(heads)

    def split(x: Any, dim: int) -> Any:
        if x is None:
            return None
        shape = (*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1 :])
        return jnp.moveaxis(x.reshape(shape), dim, 0)

    one = jax.checkpoint(attend, policy=_KEEP_OUTPUT)
    stacked = _Heads(*map(split, heads, _HEAD_DIMS))
    outs = lax.scan(lambda _, part: (None, one(part)), None, stacked)[1]
    return jnp.moveaxis(outs, 0, 2).reshape(*outs.shape[1:3], -1, outs.shape[4])


def _gathered(x: jax.Array, axis: str | None) -> jax.Array:
    return x if axis is None else _gather(x, axis)


def _all(x: jax.Array, axis: str) -> jax.Array:
    return lax.all_gather(x, axis, axis=1, tiled=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gather(x: jax.Array, axis: str) -> jax.Array:
    """All ranks' tokens, [B, S, K, H]; gradients are summed in float32."""
    return _all(x, axis)


def _gather_forward(x: jax.Array, axis: str) -> tuple[jax.Array, None]:
    return _all(x, axis), None


def _gather_backward(axis: str, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    wide = gradient.astype(jnp.float32)
    own = lax.psum_scatter(wide, axis, scatter_dimension=1, tiled=True)
    return (own.astype(gradient.dtype),)


_gather.defvjp(_gather_forward, _gather_backward)
