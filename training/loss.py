"""Next-token cross entropy as a sum and a weight, in float32."""

# B batch, T position, V vocabulary

from __future__ import annotations

import jax
import jax.numpy as jnp


def token_losses(logits_BTV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """-log p(target) of every token, float32 [B, T].

    The target's logit is picked by comparison and sum, not by a gather, so that it stays local
    when the vocabulary or the sequence is sharded.
    """
    logits = logits_BTV.astype(jnp.float32)
    # Relative to the largest: adding it back to the log of the sum would round small losses.
    logits = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    is_target = jnp.arange(logits.shape[-1], dtype=targets_BT.dtype) == targets_BT[..., None]
    target = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return jnp.log(jnp.sum(jnp.exp(logits), axis=-1)) - target


def weighted_sum(losses_BT: jax.Array, weights_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum of the scored tokens' losses and their weight; tokens of weight 0 never count.

    The caller divides the global sum by the global weight: an exact mean over any split.
    """
    weights = weights_BT.astype(jnp.float32)
    scored = jnp.where(weights > 0, losses_BT * weights, 0.0)
    return jnp.sum(scored), jnp.sum(weights)
