"""Looking tokens up in the embedding table, with a gradient that forgets none of them."""

# B batch, T position, D model width, V vocabulary

from __future__ import annotations

import jax
import jax.numpy as jnp

from model.placement import Placement

AXES = ("vocab", "embed")


def look_up(
    table_VD: jax.Array, tokens_BT: jax.Array, placement: Placement, dtype: jnp.dtype
) -> jax.Array:
    """Rows of the table, [B, T, D] in `dtype`.

    Gradients of one row are summed in float32: in bfloat16 a token that is frequent in a batch
    would have its sum stand still after a few hundred equal gradients.
    """
    shape, stored = table_VD.shape, table_VD.dtype

    @jax.custom_vjp
    def rows(table: jax.Array, tokens: jax.Array) -> jax.Array:
        return jnp.take(placement.weight(table, AXES, dtype), tokens, axis=0, mode="clip")

    def forward(table: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        return rows(table, tokens), tokens

    def backward(tokens: jax.Array, gradient_BTD: jax.Array) -> tuple[jax.Array, None]:
        gradient_BTD = gradient_BTD.astype(jnp.float32)
        sums = jnp.zeros(shape, jnp.float32).at[tokens].add(gradient_BTD, mode="clip")
        # Whole rows first: cutting them by D would move the gradients of all activations.
        for axes in (placement.gathered(AXES), AXES):
            sums = placement.constrain(sums, axes)
        return sums.astype(stored), None

    rows.defvjp(forward, backward)
    return rows(table_VD, tokens_BT)
