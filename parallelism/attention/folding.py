"""Folding around one attention: for models that run in contiguous order.

Queries, keys and values are brought into the layout just before attention and its output is brought
back just after, by the exchange of half shards between ranks (parallelism/exchange.py).
"""

from __future__ import annotations

import jax
from jax.sharding import PartitionSpec as P

from parallelism.attention.setup import AttentionSetup
from parallelism.attention.sharded import Inputs
from parallelism.exchange import exchange


def folded(inputs: Inputs, setup: AttentionSetup) -> Inputs:
    """The inputs in the layout in which attention is computed."""
    if not setup.folds:
        return inputs
    spec = setup.spec(inputs.query.shape[0], inputs.query.shape[2])
    arrays = inputs._replace(sinks=None)
    moved = jax.tree.map(lambda x: _move(x, setup, spec, back=False), arrays)
    return moved._replace(sinks=inputs.sinks)


def unfolded(out: jax.Array, setup: AttentionSetup) -> jax.Array:
    """The output in the order of the inputs."""
    if not setup.folds:
        return out
    return _move(out, setup, setup.spec(out.shape[0], out.shape[2]), back=True)


def _move(x: jax.Array, setup: AttentionSetup, spec: P, *, back: bool) -> jax.Array:
    """[B, T, ...] from contiguous order to the layout, or back."""
    axis = setup.exchange_axis
    if setup.mesh is None or axis is None:
        return setup.layout.unfold(x) if back else setup.layout.fold(x)
    sharding = P(*spec[: x.ndim])
    moved: jax.Array = jax.shard_map(
        lambda shard: exchange(shard, setup.layout, 1, axis, folded=back),
        mesh=setup.mesh,
        in_specs=sharding,
        out_specs=sharding,
        check_vma=False,
    )(x)
    return moved
