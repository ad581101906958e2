"""Narrow keys of latent attention, and the keys and values of all heads that they stand for.

A narrow key is [latent, rotated part that all heads share]; the weights make of the latent, per
head, [part of the key without positions, value].
"""

# B batch, T query position, S key position, N heads, R width of the latent, H and V widths of a
# query and a value head, P that of the part without positions, W of a narrow key

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from configs.model_schema import LatentConfig


@dataclass(frozen=True)
class LatentKeys:
    """How narrow keys [B, S, 1, W] and weights [R, N, P + V] are to be read."""

    rank: int
    nope_dim: int

    @classmethod
    def of(cls, config: LatentConfig) -> LatentKeys:
        assert config.kv_rank is not None
        return cls(config.kv_rank, config.nope_dim)

    def __call__(
        self, narrow_BS1W: jax.Array, weights_RNV: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Keys [B, S, N, H] and values [B, S, N, V]."""
        up = jnp.einsum("BSR,RNV->BSNV", narrow_BS1W[:, :, 0, : self.rank], weights_RNV)
        shared = narrow_BS1W[..., self.rank :]
        shared = jnp.broadcast_to(shared, (*up.shape[:3], shared.shape[3]))
        key = jnp.concatenate([up[..., : self.nope_dim], shared], axis=-1)
        return key, up[..., self.nope_dim :]

    def absorb(self, query_BTNH: jax.Array, weights_RNV: jax.Array) -> jax.Array:
        """Queries [B, T, N, W] whose products with narrow keys are those with the keys."""
        nope, rotated = jnp.split(query_BTNH, [self.nope_dim], axis=-1)
        narrow = jnp.einsum("BTNP,RNP->BTNR", nope, weights_RNV[..., : self.nope_dim])
        return jnp.concatenate([narrow, rotated], axis=-1)

    def values(self, out_BTNR: jax.Array, weights_RNV: jax.Array) -> jax.Array:
        """Sums of values [B, T, N, V] from sums of latents."""
        return jnp.einsum("BTNR,RNV->BTNV", out_BTNR, weights_RNV[..., self.nope_dim :])
