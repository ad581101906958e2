"""Products with many experts at once: rows sorted by expert, one grouped product for all."""

# B batch, T position, D model width, F expert width, E experts, k experts per token,
# M rows: one for each token and each expert that it goes to

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from model.blocks import blocked_dot
from model.mlp import Gating
from model.router import Routing

Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Rows [M, D], sorted by expert, times kernels [E, D, F] -> [M, F]; int32 [E] says how many rows
each expert has. What rows of no expert become is not defined."""


def grouped_product(platform: str) -> Product:
    """The form of the product that is fast on a platform ("cpu", "gpu", "tpu")."""
    return blocked_dot if platform == "cpu" else jax.lax.ragged_dot


class Weights(NamedTuple):
    """The parameters of all experts; biases are None where a family has none."""

    gate: jax.Array  # [E, D, F]
    up: jax.Array  # [E, D, F]
    down: jax.Array  # [E, F, D]
    gate_bias: jax.Array | None = None  # [E, F]
    up_bias: jax.Array | None = None  # [E, F]
    down_bias: jax.Array | None = None  # [E, D]


def serve(
    x_BTD: jax.Array, routing: Routing, weights: Weights, gating: Gating, product: Product
) -> jax.Array:
    """The weighted sum of what each token's experts make of it, [B, T, D]."""
    tokens = x_BTD.reshape(-1, x_BTD.shape[-1])
    k = routing.experts.shape[-1]
    experts_M = routing.experts.reshape(-1)
    order = jnp.argsort(experts_M, stable=True)
    rows = run_experts(tokens[order // k], experts_M[order], weights, gating, product)
    rows = rows[jnp.argsort(order)].reshape(*x_BTD.shape[:-1], k, x_BTD.shape[-1])
    return jnp.einsum("BTkD,BTk->BTD", rows, routing.weights.astype(rows.dtype))


def run_experts(
    rows_MD: jax.Array,
    experts_M: jax.Array,
    weights: Weights,
    gating: Gating,
    product: Product,
) -> jax.Array:
    """Each row through its expert; rows come sorted by expert. Rows of no expert (>= E) give 0."""
    num_experts = weights.gate.shape[0]
    sizes = jnp.sum(experts_M[:, None] == jnp.arange(num_experts), axis=0, dtype=jnp.int32)

    def linear(x: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
        y = product(x, kernel, sizes)
        return y if bias is None else y + jnp.take(bias, experts_M, axis=0, mode="clip")

    gate = linear(rows_MD, weights.gate, weights.gate_bias)
    up = linear(rows_MD, weights.up, weights.up_bias)
    out = linear(gating(gate, up), weights.down, weights.down_bias)
    return jnp.where((experts_M < num_experts)[:, None], out, 0)
