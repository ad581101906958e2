"""Attention on TPU by JAX's splash kernel, over folded sequences as they lie.

Splash takes a mask as a function of (query index, key slot) and skips blocks that it leaves empty.
So the gathered keys and values of a folded sequence stay in their order, and the mask says which
tokens they are. Ranks that exchange keys gather them in one all-gather each; the backward pass
gathers again and sums the gradients that the ranks give in float32.

Why JAX's splash and not Tokamax's: it comes with JAX, and takes windows, segments, sinks, soft caps
and such masks as well. Neither takes positions that are known only when the program runs.

Legend: B batch, T queries of a rank, S keys of all ranks, N query heads, K key/value heads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

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
from parallelism.attention.sharded import Inputs
from parallelism.attention.tiles import Expand
from parallelism.layout import Layout

LARGEST_BLOCK: Final = 512

_EMPTY: Final = np.zeros((1, 1), bool)
_FULL: Final = np.ones((1, 1), bool)


@dataclass(frozen=True)
class FoldedMask(splash_mask.Mask):
    """Who attends to whom in a folded sequence, bool [S, S], computed where it is needed."""

    mask: AttentionMask
    layout: Layout
    seq_len: int

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys of the whole sequence."""
        return self.seq_len, self.seq_len

    @property
    def q_sequence(self) -> np.ndarray:
        """The index of each query slot, int32 [S]; ranks get their parts of it."""
        return self.layout.permutation(self.seq_len)

    def mask_function(self, query_index: Any, key_slot: Any) -> Any:
        """Whether a query attends to the key in a slot; in NumPy here, on vectors in the kernel."""
        distance = query_index - slot_index(self.layout, self.seq_len, key_slot)
        low, high = self.mask.reach
        return (distance >= low) & (distance <= high)

    def __getitem__(self, block: tuple[slice, slice]) -> np.ndarray:
        """A block of the mask; just one element if all are the same, as long sequences need.

        Splash asks every block whether it is empty or full, and keeps none but the others.
        """
        rows, columns = ((part.start, part.stop) for part in block)
        first_query, last_query = _span(self.layout, self.seq_len, *rows)
        first_key, last_key = _span(self.layout, self.seq_len, *columns)
        low, high = self.mask.reach
        if last_query - first_key < low or first_query - last_key > high:
            return _EMPTY
        if first_query - last_key >= low and last_query - first_key <= high:
            return _FULL
        slots = np.arange(*columns, dtype=np.int32)
        return np.asarray(self.mask_function(self.q_sequence[block[0]][:, None], slots[None]))


@functools.lru_cache(maxsize=2**16)
def _span(layout: Layout, seq_len: int, start: int, stop: int) -> tuple[int, int]:
    """The first and the last token in some slots."""
    tokens = layout.permutation(seq_len)[start:stop]
    return int(tokens.min()), int(tokens.max())


def slot_index(layout: Layout, seq_len: int, slot: Any) -> Any:
    """The token in a slot: `layout.permutation` as arithmetic that a kernel can do."""
    if layout.is_identity:
        return slot
    length = seq_len // layout.multiple
    chunk = slot // length
    offset = slot - chunk * length
    if layout.name == "striped":
        return chunk + layout.cp * offset
    rank = chunk // 2
    mirrored = (chunk - 2 * rank) * (2 * layout.cp - 1 - 2 * rank)
    return (rank + mirrored) * length + offset


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
    interpret: bool = False


def attend_splash(problem: SplashProblem, inputs: Inputs) -> jax.Array:
    """Attention [B, T, N, Hv] over whole arrays, in the dtype of the query."""
    kernel = _kernel(problem, inputs)
    # The backward pass starts from the output and its log-sum-exp, and gathers keys anew.
    policy = jax.checkpoint_policies.save_only_these_names("attention_out")
    body = jax.checkpoint(functools.partial(_attend_shard, problem), policy=policy)
    # Sequences of one length have one array of segment ids.
    segments = None if inputs.segments is None else inputs.segments.query
    arrays = (inputs.query, inputs.key, inputs.value, inputs.weights)
    if problem.mesh is None:
        return body(kernel, arrays, segments, inputs.sinks)
    batch, sequence, heads = problem.spec
    keys = problem.spec if problem.expand is None else P(batch, sequence)
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
    seq_len, num_heads = inputs.query.shape[1:3]
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
    kernel: Any,
    arrays: tuple[jax.Array, Any, Any, Any],
    segments: jax.Array | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """Output [B, T, N, Hv] of one rank's queries."""
    query, key, value, weights = arrays
    query = (problem.scale * query.astype(jnp.float32)).astype(query.dtype)
    key, value = jax.tree.map(lambda x: _gathered(x, problem.axis), (key, value))
    if problem.expand is not None:
        key, value = problem.expand(key, weights)
    by_head = tuple(x.swapaxes(1, 2) for x in (query, key, value))
    ids = None
    if segments is not None:
        everyone = segments if problem.axis is None else _all(segments, problem.axis)
        ids = splash.SegmentIds(segments, everyone)
    attend = jax.vmap(lambda qkv, ids: kernel(*qkv, ids, sinks))
    out = attend(by_head, ids).swapaxes(1, 2)
    # To splash, padding (segment 0) is a segment like any other.
    return out if segments is None else jnp.where(segments[:, :, None, None] == 0, 0, out)


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
