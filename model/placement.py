"""Where a model's arrays live: the one object through which layers meet the mesh."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from parallelism import DEFAULT_RULES, AttentionSetup, Layout, Rules

# Weights are gathered over these logical axes just before they are used; tensor axes stay split.
_GATHERED = frozenset({"embed", "expert_embed"})


@dataclass(frozen=True)
class Placement:
    """Mesh, sharding rules and attention set-up of a model; the default is one device.

    `batch_axes_used=False` leaves activations to the compiler, for batches that are smaller
    than the mesh (generation).
    """

    attention: AttentionSetup = field(
        default_factory=lambda: AttentionSetup(mesh=None, layout=Layout("contiguous", 1))
    )
    rules: Rules = DEFAULT_RULES
    constrain_activations: bool = True

    def activation(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Constrains an activation to the mesh axes of its logical axes."""
        mesh = self.attention.mesh
        if mesh is None or not self.constrain_activations:
            return x
        return jax.lax.with_sharding_constraint(x, self.rules.sharding(mesh, axes, x.shape))

    def gathered(self, axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """The logical axes of a weight that are still split where it is used."""
        return tuple(None if axis in _GATHERED else axis for axis in axes)

    def weight(self, x: jax.Array, axes: tuple[str | None, ...], dtype: jnp.dtype) -> jax.Array:
        """Casts a weight to the compute dtype and gathers its fsdp and context shards.

        Its gradient takes the same way back: summed over the devices' own tokens, then kept in
        shards only (a reduce-scatter where the compiler fuses the two).
        """
        mesh = self.attention.mesh
        x = x.astype(dtype)
        if mesh is None:
            return x
        stored = self.rules.sharding(mesh, axes, x.shape)
        gathered = self.rules.sharding(mesh, self.gathered(axes), x.shape)
        if stored == gathered:
            return x
        # The first constraint keeps what is saved for the backward pass in shards.
        x = jax.lax.with_sharding_constraint(x, stored)
        return jax.lax.with_sharding_constraint(x, gathered)
