"""Experts over a mesh: tokens travel to the devices that hold their experts, and back.

Each device sorts its rows (a token for one of its experts) by expert, hands every expert rank a
buffer with the rows for it, runs what it receives through its own experts, and hands it back: two
all-to-alls a layer and direction. A buffer has room for all rows of the sender, so nothing is ever
dropped; rows that are not used take part in the exchange but in no product. The batch is split
over the expert axis as well, which for all other layers is one more way of fsdp.
"""

# N tokens and M = N k rows of a device, C expert ranks, D model width, E experts of a device

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from model.grouped import Product, Weights, grouped_product, run_experts, serve
from model.mlp import Gating
from model.placement import Placement
from model.router import Routing


def serve_sharded(
    x_BTD: jax.Array,
    routing: Routing,
    weights: Weights,
    *,
    axes: dict[str, tuple[str, ...]],
    gating: Gating,
    placement: Placement,
) -> jax.Array:
    """`serve`, with tokens and experts on the mesh of the placement; `weights` come as stored."""
    mesh, rules = placement.attention.mesh, placement.rules
    assert mesh is not None
    product = grouped_product(placement.attention.platform)
    tokens = rules.spec(("batch", "sequence", None), x_BTD.shape, mesh)
    given = {name: w for name, w in weights._asdict().items() if w is not None}
    stored: dict[str, Any] = {n: rules.spec(axes[n], w.shape, mesh) for n, w in given.items()}
    used = {n: rules.spec(placement.gathered(axes[n]), w.shape, mesh) for n, w in given.items()}
    expert, _, tensor = used["gate"]

    def body(x: jax.Array, routing: Routing, weights: Weights) -> jax.Array:
        weights = _bias_once(_gathered(weights, stored, used), tensor)
        if expert is None or mesh.shape[expert] == 1:
            y = serve(x, routing, weights, gating, product)
        else:
            y = _exchange(x, routing, weights, gating, product, expert)
        return y if tensor is None else jax.lax.psum(y, tensor)

    of_routing: Any = Routing(tokens, tokens, tokens)  # type: ignore[arg-type]
    run = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(tokens, of_routing, Weights(**stored)),
        out_specs=tokens,
        check_vma=False,
    )
    return run(x_BTD, routing, weights)


def _gathered(weights: Weights, stored: dict[str, P], used: dict[str, P]) -> Weights:
    """Whole weights of this device's experts from the shards; backward, a reduce-scatter."""

    def gather(shard: jax.Array, before: P, after: P) -> jax.Array:
        for dim, (some, fewer) in enumerate(itertools.zip_longest(before, after)):
            gone = tuple(axis for axis in _names(some) if axis not in _names(fewer))
            if gone:
                shard = jax.lax.all_gather(shard, gone, axis=dim, tiled=True)
        return shard

    given = weights._asdict()
    whole = {name: gather(given[name], stored[name], used[name]) for name in stored}
    return weights._replace(**whole)


def _names(entry: Any) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


def _bias_once(weights: Weights, tensor: Any) -> Weights:
    """Leaves the output's bias to the first of the ranks whose outputs are summed."""
    if weights.down_bias is None or tensor is None:
        return weights
    is_first = jax.lax.axis_index(tensor) == 0
    return weights._replace(down_bias=jnp.where(is_first, weights.down_bias, 0))


def _exchange(
    x_BTD: jax.Array,
    routing: Routing,
    weights: Weights,
    gating: Gating,
    product: Product,
    axis: str,
) -> jax.Array:
    """The outputs for this device's tokens, from experts of all ranks of the axis."""
    ranks, own = jax.lax.axis_size(axis), weights.gate.shape[0]
    tokens, k = x_BTD.reshape(-1, x_BTD.shape[-1]), routing.experts.shape[-1]
    experts_M = routing.experts.reshape(-1)
    order = jnp.argsort(experts_M, stable=True)
    sorted_M = experts_M[order]
    rank_M = sorted_M // own
    place_M = jnp.arange(order.size) - jnp.searchsorted(rank_M, rank_M)

    rows = jnp.zeros((ranks, order.size, tokens.shape[1]), tokens.dtype)
    rows = rows.at[rank_M, place_M].set(tokens[order // k])
    ids = jnp.full((ranks, order.size), own, jnp.int32)  # `own` is no expert: a row not used
    ids = ids.at[rank_M, place_M].set(sorted_M % own)
    rows, ids = (jax.lax.all_to_all(x, axis, 0, 0) for x in (rows, ids))

    arrived = jnp.argsort(ids.reshape(-1), stable=True)
    sorted_rows, ids = rows.reshape(-1, rows.shape[2])[arrived], ids.reshape(-1)[arrived]
    served = run_experts(sorted_rows, ids, weights, gating, product)
    served = served[jnp.argsort(arrived)].reshape(rows.shape)
    served = jax.lax.all_to_all(served, axis, 0, 0)[rank_M, place_M]
    served = served[jnp.argsort(order)].reshape(*routing.experts.shape, -1)
    return jnp.einsum("BTkD,BTk->BTD", served, routing.weights.astype(served.dtype))
