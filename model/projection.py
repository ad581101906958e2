"""Linear maps between activations, with their sharding and, where a family has one, a bias."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from configs.model_schema import ModelConfig
from model.parameters import VECTOR, Role, declare
from model.placement import Placement
from parallelism import Constant, TruncatedNormal

FACTORS = ("lora_down", "lora_up")


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
        self.placement, self.factor_scale = placement, 0.0

    def add_factors(self, rank: int, scale: float) -> None:
        """Adds low-rank factors beside the kernel, float32; together they start at zero."""
        shape, num_inputs = self.kernel.get_raw_value().shape, self.num_inputs
        inputs, outputs = shape[:num_inputs], shape[num_inputs:]
        std = (3 * math.prod(inputs)) ** -0.5  # that of PEFT's uniform draw
        float32, down, up = jnp.dtype(jnp.float32), Role(True, num_inputs), Role(True, 1)
        in_axes, out_axes = self._factor_axes()
        self.lora_down = declare((*inputs, rank), in_axes, TruncatedNormal(std), float32, down)
        self.lora_up = declare((rank, *outputs), out_axes, Constant(0.0), float32, up)
        self.factor_scale = scale

    @property
    def is_trained(self) -> bool:
        """Whether training changes the kernel, as a layer declares it."""
        trained: bool = self.kernel.get_metadata("role").trained
        return trained

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.placement.weight(self.kernel[...], self.axes, x.dtype)
        y = jnp.einsum(self.einsum, x, kernel)
        if self.factor_scale:
            y = y + self.factor_scale * self._low_rank(x)
        if self.bias is None:
            return y
        return y + self.placement.weight(self.bias[...], self.axes[self.num_inputs :], x.dtype)

    def whole_kernel(self, dtype: jnp.dtype) -> jax.Array:
        """The kernel, gathered and cast, with the product of its factors: for another to use."""
        kernel = self.placement.weight(self.kernel[...], self.axes, dtype)
        if not self.factor_scale:
            return kernel
        down, up = self._factors(dtype)
        return kernel + self.factor_scale * jnp.tensordot(down, up, axes=1)

    def _low_rank(self, x: jax.Array) -> jax.Array:
        operands, out = self.einsum.split("->")
        letters, kernel = operands.split(",")
        inputs, outputs = kernel[: self.num_inputs], kernel[self.num_inputs :]
        down, up = self._factors(x.dtype)
        narrow = jnp.einsum(f"{letters},{inputs}r->BTr", x, down)
        return jnp.einsum(f"BTr,r{outputs}->{out}", narrow, up)

    def _factors(self, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        in_axes, out_axes = self._factor_axes()
        down = self.placement.weight(self.lora_down[...], in_axes, dtype)
        return down, self.placement.weight(self.lora_up[...], out_axes, dtype)

    def _factor_axes(self) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
        return (*self.axes[: self.num_inputs], None), (None, *self.axes[self.num_inputs :])


def _num_contracted(einsum: str) -> int:
    """Leading kernel dimensions that the einsum contracts: "BTD,DNH->BTNH" -> 1."""
    operands, out = einsum.split("->")
    return sum(letter not in out for letter in operands.split(",")[1])


def residual_std(config: ModelConfig) -> float:
    """Std of matrices that write to the residual stream: 1/sqrt(2 L) of the others (GPT-2)."""
    return config.init_std / math.sqrt(2 * config.num_layers)
