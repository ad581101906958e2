"""The routed experts: every token to its experts and back, whatever the load (dropless)."""

# B batch, T position, D model width, F expert width, E experts

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from configs.model_schema import ModelConfig
from model.expert_factors import ExpertFactors
from model.expert_parallel import serve_sharded
from model.grouped import Weights, grouped_product, serve
from model.mlp import gating
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


class Experts(nnx.Module):
    """Gated MLPs side by side; one grouped product over all experts at once."""

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
        self.gating, self.placement, self.factor_scale = gating(config), placement, 0.0

    def add_factors(self, rank: int, scale: float) -> None:
        """Adds low-rank factors of all matrices."""
        self.factors = ExpertFactors(self.gate.get_raw_value().shape, rank)
        self.factor_scale = scale

    def _weights(self, dtype: jnp.dtype) -> Weights:
        """The parameters as they are stored, in the compute dtype, with what factors add."""
        weights = {name: getattr(self, name)[...].astype(dtype) for name in self.axes}
        if self.factor_scale:
            for name, change in self.factors.changes().items():
                weights[name] += (self.factor_scale * change).astype(dtype)
        return Weights(**weights)

    def __call__(self, x_BTD: jax.Array, routing: Routing) -> jax.Array:
        weights = self._weights(x_BTD.dtype)
        if self.placement.attention.mesh is None:
            product = grouped_product(self.placement.attention.platform)
            return serve(x_BTD, routing, weights, self.gating, product)
        return serve_sharded(
            x_BTD,
            routing,
            weights,
            axes=self.axes,
            gating=self.gating,
            placement=self.placement,
        )
