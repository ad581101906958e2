"""Low-rank factors of the experts' matrices, as PEFT has them.

Gate and up share the factor that reads the input. Unlike a projection's, products of factors are
added to the matrices, in every step, so that experts meet their rows in the usual way.
"""

# E experts, D model width, F expert width, r rank; c = 2: gate and up

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model.parameters import Role, declare
from parallelism import Constant, TruncatedNormal

_Axes = tuple[str | None, ...]


class Factors(nnx.Module):
    """Two factors, float32; together they start at zero."""

    def __init__(self, down: tuple[int, ...], up: tuple[int, ...], axes: tuple[_Axes, _Axes]):
        std = (3 * down[1]) ** -0.5  # that of PEFT's uniform draw
        float32, role = jnp.dtype(jnp.float32), Role(True, 1, num_batch_dims=1)
        self.lora_down = declare(down, axes[0], TruncatedNormal(std), float32, role)
        self.lora_up = declare(up, axes[1], Constant(0.0), float32, role)

    def arrays(self) -> dict[str, jax.Array]:
        return {"lora_down": self.lora_down[...], "lora_up": self.lora_up[...]}


class ExpertFactors(nnx.Module):
    """The factors of matrices gate and up [E, D, F], and of down [E, F, D]."""

    def __init__(self, shape: tuple[int, ...], rank: int) -> None:
        num, dim, width = shape
        self.gate_up = Factors(
            (num, dim, rank),
            (num, rank, 2, width),
            (("expert", "expert_embed", None), ("expert", None, None, "mlp")),
        )
        self.down = Factors(
            (num, width, rank),
            (num, rank, dim),
            (("expert", "mlp", None), ("expert", None, "expert_embed")),
        )

    def changes(self) -> dict[str, jax.Array]:
        """What is added to gate, up and down as they are stored, before it is scaled; float32."""
        return products({"gate_up": self.gate_up.arrays(), "down": self.down.arrays()})


def products(factors: dict[str, Any]) -> dict[str, jax.Array]:
    """The products of factors, by name of the matrix; of one layer, or of stacked ones."""
    gate_up, down = factors["gate_up"], factors["down"]
    gate, up = jnp.einsum("...EDr,...ErcF->c...EDF", gate_up["lora_down"], gate_up["lora_up"])
    of_down = jnp.einsum("...EFr,...ErD->...EFD", down["lora_down"], down["lora_up"])
    return {"gate": gate, "up": up, "down": of_down}
