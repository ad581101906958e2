"""The feed-forward layer: a gated MLP."""

# B batch, T position, D model width, F feed-forward width

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from configs.model_schema import ModelConfig
from model.placement import Placement
from model.projection import Projection

Gating = Callable[[jax.Array, jax.Array], jax.Array]

_CLAMPED_GAIN = 1.702  # of the sigmoid in gpt-oss, an approximation of GELU


def gating(config: ModelConfig) -> Gating:
    """The function (gate, up) -> hidden of a model's feed-forward layers."""
    limit = config.activation_limit

    def silu(gate: jax.Array, up: jax.Array) -> jax.Array:
        return jax.nn.silu(gate) * up

    def gelu_tanh(gate: jax.Array, up: jax.Array) -> jax.Array:
        return jax.nn.gelu(gate, approximate=True) * up

    def clamped_silu(gate: jax.Array, up: jax.Array) -> jax.Array:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
        return gate * jax.nn.sigmoid(_CLAMPED_GAIN * gate) * (up + 1)

    return {"silu": silu, "gelu_tanh": gelu_tanh, "clamped_silu": clamped_silu}[config.activation]


class GatedMLP(nnx.Module):
    """down(act(gate(x)) * up(x)); with SiLU this is SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, width: int, placement: Placement) -> None:
        dim, axes, rest = config.embed_dim, ("embed", "mlp"), (config, placement)
        bias = config.mlp_bias
        self.gate = Projection("BTD,DF->BTF", (dim, width), axes, *rest, bias=bias)
        self.up = Projection("BTD,DF->BTF", (dim, width), axes, *rest, bias=bias)
        self.down = Projection(
            "BTF,FD->BTD", (width, dim), ("mlp", "embed"), *rest, bias=bias, to_residual=True
        )
        self.gating = gating(config)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        gate = checkpoint_name(self.gate(x_BTD), "mlp_gate")
        up = checkpoint_name(self.up(x_BTD), "mlp_up")
        return checkpoint_name(self.down(self.gating(gate, up)), "mlp_out")
