"""The routed experts: every token to its experts and back, whatever the load (dropless)."""

# B batch, T position, D model width, F expert width, E experts, k experts per token,
# M rows: one for each token and each expert that it goes to

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from configs.schema import ModelConfig
from model.mlp import Gating, gating
from model.parameters import VECTOR, Role, declare
from model.placement import Placement
from model.projection import residual_std
from model.router import Routing
from parallelism import Constant, TruncatedNormal

_Axes = dict[str, tuple[str, ...]]

_KERNEL_AXES: _Axes = {
    "gate": ("expert", "expert_embed", "mlp"),
    "up": ("expert", "expert_embed", "mlp"),
    "down": ("expert", "mlp", "expert_embed"),
}
_BIAS_AXES: _Axes = {
    "gate_bias": ("expert", "mlp"),
    "up_bias": ("expert", "mlp"),
    "down_bias": ("expert", "expert_embed"),
}


class Weights(NamedTuple):
    """The parameters of all experts; biases are None where a family has none."""

    gate: jax.Array  # [E, D, F]
    up: jax.Array  # [E, D, F]
    down: jax.Array  # [E, F, D]
    gate_bias: jax.Array | None = None  # [E, F]
    up_bias: jax.Array | None = None  # [E, F]
    down_bias: jax.Array | None = None  # [E, D]


class Experts(nnx.Module):
    """Gated MLPs side by side; products over all experts at once by `jax.lax.ragged_dot`."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        moe, dim, dtype = config.moe, config.embed_dim, jnp.dtype(config.param_dtype)
        wide, narrow = (moe.num_experts, dim, moe.expert_dim), (moe.num_experts, moe.expert_dim)
        matrix = Role(True, 1, num_batch_dims=1)
        init, last = TruncatedNormal(config.init_std), TruncatedNormal(residual_std(config))
        self.gate = declare(wide, _KERNEL_AXES["gate"], init, dtype, matrix)
        self.up = declare(wide, _KERNEL_AXES["up"], init, dtype, matrix)
        self.down = declare((*narrow, dim), _KERNEL_AXES["down"], last, dtype, matrix)
        self.axes = dict(_KERNEL_AXES)
        if config.mlp_bias:
            zero, axes = Constant(0.0), _BIAS_AXES
            self.gate_bias = declare(narrow, axes["gate_bias"], zero, dtype, VECTOR)
            self.up_bias = declare(narrow, axes["up_bias"], zero, dtype, VECTOR)
            self.down_bias = declare(wide[:2], axes["down_bias"], zero, dtype, VECTOR)
            self.axes |= _BIAS_AXES
        self.gating, self.placement = gating(config), placement

    def __call__(self, x_BTD: jax.Array, routing: Routing) -> jax.Array:
        weights = Weights(
            **{
                name: self.placement.weight(getattr(self, name)[...], axes, x_BTD.dtype)
                for name, axes in self.axes.items()
            }
        )
        return serve(x_BTD, routing, weights, self.gating)


def serve(x_BTD: jax.Array, routing: Routing, weights: Weights, gating: Gating) -> jax.Array:
    """The weighted sum of what each token's experts make of it, [B, T, D]."""
    tokens = x_BTD.reshape(-1, x_BTD.shape[-1])
    k = routing.experts.shape[-1]
    experts_M = routing.experts.reshape(-1)
    order = jnp.argsort(experts_M, stable=True)
    rows = run_experts(tokens[order // k], experts_M[order], weights, gating)
    rows = rows[jnp.argsort(order)].reshape(*x_BTD.shape[:-1], k, x_BTD.shape[-1])
    return jnp.einsum("BTkD,BTk->BTD", rows, routing.weights.astype(rows.dtype))


def run_experts(
    rows_MD: jax.Array, experts_M: jax.Array, weights: Weights, gating: Gating
) -> jax.Array:
    """Each row through its expert; rows come sorted by expert. Rows of no expert (>= E) give 0."""
    num_experts = weights.gate.shape[0]
    sizes = jnp.sum(experts_M[:, None] == jnp.arange(num_experts), axis=0, dtype=jnp.int32)

    def product(x: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
        y = jax.lax.ragged_dot(x, kernel, sizes)
        return y if bias is None else y + jnp.take(bias, experts_M, axis=0, mode="clip")

    gate = product(rows_MD, weights.gate, weights.gate_bias)
    up = product(rows_MD, weights.up, weights.up_bias)
    out = product(gating(gate, up), weights.down, weights.down_bias)
    return jnp.where((experts_M < num_experts)[:, None], out, 0)
