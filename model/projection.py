"""Linear maps between activations, with their sharding and, where a family has one, a bias."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from configs.schema import ModelConfig
from model.parameters import VECTOR, Role, declare
from model.placement import Placement
from parallelism import Constant, TruncatedNormal


class Projection(nnx.Module):
    """A weight contracted with an activation by an einsum; gathered and cast where it is used."""

    def __init__(
        self,
        einsum: str,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        config: ModelConfig,
        placement: Placement,
        *,
        bias: bool = False,
        to_residual: bool = False,
    ) -> None:
        dtype, num_inputs = jnp.dtype(config.param_dtype), _num_contracted(einsum)
        init = TruncatedNormal(residual_std(config) if to_residual else config.init_std)
        self.kernel = declare(shape, axes, init, dtype, Role(True, num_inputs))
        outputs = slice(num_inputs, None)
        self.bias = (
            declare(shape[outputs], axes[outputs], Constant(0.0), dtype, VECTOR) if bias else None
        )
        self.einsum, self.axes, self.num_inputs = einsum, axes, num_inputs
        self.placement = placement

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.placement.weight(self.kernel[...], self.axes, x.dtype)
        y = jnp.einsum(self.einsum, x, kernel)
        if self.bias is None:
            return y
        return y + self.placement.weight(self.bias[...], self.axes[self.num_inputs :], x.dtype)


def _num_contracted(einsum: str) -> int:
    """Leading kernel dimensions that the einsum contracts: "BTD,DNH->BTNH" -> 1."""
    operands, out = einsum.split("->")
    return sum(letter not in out for letter in operands.split(",")[1])


def residual_std(config: ModelConfig) -> float:
    """Std of matrices that write to the residual stream: 1/sqrt(2 L) of the others (GPT-2)."""
    return config.init_std / math.sqrt(2 * config.num_layers)
