"""Context parallelism by exchanging heads for tokens: each rank gets all tokens of some heads.

Two reshardings around attention without any communication: before it, one all-to-all each for
queries, keys and values; after it, one for the output. The tokens stay in their folded order, which
the plan knows, and heads are shared by the tensor and the context axis together.

Source: Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme
Long Sequence Transformer Models", 2023 (arXiv:2309.14509).
"""

from __future__ import annotations

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from parallelism.attention.sharded import Inputs, Problem, attend_sharded


def by_heads(spec: P) -> P:
    """How [B, T, N] is sharded once tokens are exchanged for heads."""
    batch, context, heads = spec
    return P(batch, None, context if heads is None else (heads, context))


def attend_by_heads(problem: Problem, inputs: Inputs, spec: P) -> jax.Array:
    """The attention of a problem that is sharded by heads, on arrays that are sharded by `spec`."""
    query, key, value = (
        _exchange(x, problem, spec, to_heads=True) for x in (inputs.query, inputs.key, inputs.value)
    )
    out = attend_sharded(problem, inputs._replace(query=query, key=key, value=value))
    return _exchange(out, problem, spec, to_heads=False)


def _exchange(x: jax.Array, problem: Problem, spec: P, *, to_heads: bool) -> jax.Array:
    """[B, T, N, H] from one sharding to the other."""
    split, concat = (2, 1) if to_heads else (1, 2)
    before, after = (spec, by_heads(spec)) if to_heads else (by_heads(spec), spec)

    def swap(shard: jax.Array) -> jax.Array:
        return lax.all_to_all(shard, spec[1], split_axis=split, concat_axis=concat, tiled=True)

    assert problem.mesh is not None
    moved: jax.Array = jax.shard_map(swap, mesh=problem.mesh, in_specs=before, out_specs=after)(x)
    return moved
