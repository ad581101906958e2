"""Context parallelism by exchanging heads for tokens: each rank gets all tokens of some heads.

Two reshardings around attention without any communication: before it, one all-to-all each for
queries, keys and values; after it, one for the output. The tokens stay in their folded order, which
the plan knows, and heads are shared by the tensor and the context axis together.

Source: Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme
Long Sequence Transformer Models", 2023 (arXiv:2309.14509).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from parallelism.attention.setup import AttentionSetup
from parallelism.attention.sharded import Inputs, Outputs


def attend_by_heads(
    attend: Callable[[Inputs], Outputs], inputs: Inputs, setup: AttentionSetup
) -> Outputs:
    """`attend`, which takes arrays that are sharded by heads, on arrays that are by tokens."""
    # Narrow keys are for all heads: `attend` gathers all tokens of them on every rank.
    by_head = inputs[:1] if inputs.value is None else inputs[:3]
    moved = (_exchange(x, setup, to_heads=True) for x in by_head)
    given = attend(Inputs(*moved, *inputs[len(by_head) :]))
    return given._replace(out=_exchange(given.out, setup, to_heads=False))


@jax.named_scope("exchange")
def _exchange(x: jax.Array, setup: AttentionSetup, *, to_heads: bool) -> jax.Array:
    """[B, T, N, H] from one sharding to the other."""
    by_tokens, by_heads = (
        find(x.shape[0], x.shape[2]) for find in (setup.spec, setup.attending_spec)
    )
    split, concat = (2, 1) if to_heads else (1, 2)
    before, after = (by_tokens, by_heads) if to_heads else (by_heads, by_tokens)

    def swap(shard: jax.Array) -> jax.Array:
        axis = setup.context_axis
        return lax.all_to_all(shard, axis, split_axis=split, concat_axis=concat, tiled=True)

    assert setup.mesh is not None
    moved: jax.Array = jax.shard_map(swap, mesh=setup.mesh, in_specs=before, out_specs=after)(x)
    return moved
