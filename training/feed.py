"""From host batches to arrays on the mesh: one fold, then each device gets its slice."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from parallelism import Layout, Rules


@dataclass(frozen=True)
class Feed:
    """Places batches [B, T] on a mesh: rows over the batch axes, tokens over context.

    Rows arrive in plain order and leave in the layout's folded order.
    """

    mesh: Mesh
    rules: Rules
    layout: Layout

    def sharding(self) -> NamedSharding:
        """How every array of a batch lies on the mesh."""
        return self.rules.sharding(self.mesh, ("batch", "sequence"))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Folds a global batch and hands every device of this process its slice."""
        return {name: self._place(self.layout.fold(x, 1)) for name, x in batch.items()}

    def _place(self, x: np.ndarray) -> jax.Array:
        sharding = self.sharding()
        if sharding.is_fully_addressable:
            return jax.device_put(x, sharding)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
