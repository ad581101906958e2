"""The parts of a decoder layer: RMSNorm, self-attention and the gated MLP."""

# B batch, T query position, S key position, D model width, F feed-forward width,
# N query heads, K key/value heads, H head width

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from configs.schema import ModelConfig
from model.parameters import VECTOR, Role, declare
from model.placement import Placement
from model.rope import rotate
from parallelism import Constant, TruncatedNormal

RopeTables = tuple[jax.Array, jax.Array]


class Attend(Protocol):
    """How queries meet keys: the training attention, or one over a key/value cache."""

    def __call__(
        self, query_BTNH: jax.Array, key_BTKH: jax.Array, value_BTKH: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Returns the output [B, T, N, H] and whatever the caller wants back (a new cache)."""


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, in float32 (arXiv 1910.07467)."""

    def __init__(self, config: ModelConfig) -> None:
        dtype = jnp.dtype(config.param_dtype)
        self.scale = declare((config.embed_dim,), ("norm",), Constant(1.0), dtype, VECTOR)
        self.eps = config.norm_eps

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x = x_BTD.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return (x * self.scale[...].astype(jnp.float32)).astype(x_BTD.dtype)


class Projection(nnx.Module):
    """A weight contracted with an activation by an einsum; gathered and cast where it is used."""

    def __init__(
        self,
        einsum: str,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        std: float,
        config: ModelConfig,
        placement: Placement,
    ) -> None:
        dtype = jnp.dtype(config.param_dtype)
        role = Role(decays=True, num_input_dims=_num_contracted(einsum))
        self.kernel = declare(shape, axes, TruncatedNormal(std), dtype, role)
        self.einsum = einsum
        self.axes = axes
        self.placement = placement

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.placement.weight(self.kernel[...], self.axes, x.dtype)
        return jnp.einsum(self.einsum, x, kernel)


def _num_contracted(einsum: str) -> int:
    """Leading kernel dimensions that the einsum contracts: "BTD,DNH->BTNH" -> 1."""
    operands, out = einsum.split("->")
    return sum(letter not in out for letter in operands.split(",")[1])


def residual_std(config: ModelConfig) -> float:
    """Std of matrices that write to the residual stream: 1/sqrt(2 L) of the others (GPT-2)."""
    return config.init_std / math.sqrt(2 * config.num_layers)


class SelfAttention(nnx.Module):
    """Grouped-query attention with rotary positions; how keys are met is the caller's."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        dim, heads, head_dim = config.embed_dim, config.num_heads, config.head_dim
        kv_shape, kv_axes = (dim, config.num_kv_heads, head_dim), ("embed", "kv_heads", "head_dim")
        std, rest = config.init_std, (config, placement)
        self.query = Projection(
            "BTD,DNH->BTNH", (dim, heads, head_dim), ("embed", "heads", "head_dim"), std, *rest
        )
        self.key = Projection("BTD,DKH->BTKH", kv_shape, kv_axes, std, *rest)
        self.value = Projection("BTD,DKH->BTKH", kv_shape, kv_axes, std, *rest)
        self.out = Projection(
            "BTNH,NHD->BTD",
            (heads, head_dim, dim),
            ("heads", "head_dim", "embed"),
            residual_std(config),
            *rest,
        )
        self.placement = placement

    def __call__(
        self, x_BTD: jax.Array, rope: RopeTables, attend: Attend
    ) -> tuple[jax.Array, Any]:
        query = checkpoint_name(rotate(self.query(x_BTD), rope), "query")
        key = checkpoint_name(rotate(self.key(x_BTD), rope), "key")
        value = checkpoint_name(self.value(x_BTD), "value")
        out, extra = attend(
            self._by_heads(query, "heads"),
            self._by_heads(key, "kv_heads"),
            self._by_heads(value, "kv_heads"),
        )
        return self.out(checkpoint_name(out, "attention_out")), extra

    def _by_heads(self, x: jax.Array, heads: str) -> jax.Array:
        return self.placement.activation(x, "batch", "sequence", heads, None)


class GatedMLP(nnx.Module):
    """down(act(gate(x)) * up(x)); with SiLU this is SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        dim, width, rest = config.embed_dim, config.mlp_dim, (config, placement)
        axes, std = ("embed", "mlp"), config.init_std
        self.gate = Projection("BTD,DF->BTF", (dim, width), axes, std, *rest)
        self.up = Projection("BTD,DF->BTF", (dim, width), axes, std, *rest)
        self.down = Projection(
            "BTF,FD->BTD", (width, dim), ("mlp", "embed"), residual_std(config), *rest
        )
        self.activation: Callable[[jax.Array], jax.Array] = jax.nn.silu

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        gate = checkpoint_name(self.gate(x_BTD), "mlp_gate")
        up = checkpoint_name(self.up(x_BTD), "mlp_up")
        return checkpoint_name(self.down(self.activation(gate) * up), "mlp_out")


class DecoderLayer(nnx.Module):
    """Pre-norm residual layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        self.attention_norm = RMSNorm(config)
        self.attention = SelfAttention(config, placement)
        self.mlp_norm = RMSNorm(config)
        self.mlp = GatedMLP(config, placement)
        self.placement = placement

    def __call__(
        self, x_BTD: jax.Array, rope: RopeTables, attend: Attend
    ) -> tuple[jax.Array, Any]:
        attended, extra = self.attention(self.attention_norm(x_BTD), rope, attend)
        x_BTD = self._residual(x_BTD + attended)
        return self._residual(x_BTD + self.mlp(self.mlp_norm(x_BTD))), extra

    def _residual(self, x_BTD: jax.Array) -> jax.Array:
        return self.placement.activation(x_BTD, "batch", "sequence", None)
