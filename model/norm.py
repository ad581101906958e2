"""RMSNorm, over the width of the model, of a head, or of all heads at once; and LayerNorm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from configs.model_schema import ModelConfig
from model.parameters import VECTOR, declare
from parallelism import Constant


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * scale in float32 (arXiv 1910.07467).

    The mean is over as many trailing dimensions as `shape` has. With `norm_plus_one` the factor
    is 1 + scale, as Gemma stores it.
    """

    def __init__(
        self,
        config: ModelConfig,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...] = ("norm",),
        eps: float | None = None,
    ) -> None:
        self.offset = 1.0 if config.norm_plus_one else 0.0
        self.eps = config.norm_eps if eps is None else eps
        self.dims = tuple(range(-len(shape), 0))
        dtype = jnp.dtype(config.param_dtype)
        self.scale = declare(shape, axes, Constant(1.0 - self.offset), dtype, VECTOR)

    def __call__(self, x_in: jax.Array) -> jax.Array:
        x = x_in.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=self.dims, keepdims=True) + self.eps)
        return (x * (self.offset + self.scale[...].astype(jnp.float32))).astype(x_in.dtype)


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + 1e-6) * scale + bias over the last dimension, in float32."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        dtype = jnp.dtype(config.param_dtype)
        self.scale = declare((width,), ("norm",), Constant(1.0), dtype, VECTOR)
        self.bias = declare((width,), ("norm",), Constant(0.0), dtype, VECTOR)

    def __call__(self, x_in: jax.Array) -> jax.Array:
        x = jax.nn.standardize(x_in.astype(jnp.float32), epsilon=1e-6)
        scale, bias = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        return (x * scale + bias).astype(x_in.dtype)
