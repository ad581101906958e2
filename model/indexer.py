"""The indexer of sparse attention: a few light heads that score the keys of every query.

Queries come from the latent of the attention's queries, one key a token and the weights of the
heads from the residual stream. A query attends to the keys with the best scores. No gradient comes
back through that choice, and none leaves the indexer for the rest of the model: it learns from a
loss of its own what the attention attends to, or stays as it is drawn or loaded.

Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1, without its Hadamard rotation, which changes
no product, and without its 8-bit floats.
"""

# B batch, T position, D model width, R width of the query latent, I index heads, H their width

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from configs.model_schema import ModelConfig
from model.norm import LayerNorm
from model.placement import Placement
from model.projection import Projection
from model.rope import rotate
from parallelism import Index


class Indexer(nnx.Module):
    """An index head starts with its rotated part, in halves whatever the attention's pairs are."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        heads, width = config.indexer.num_heads, config.indexer.head_dim
        dim, rank = config.embed_dim, config.latent.query_rank
        assert rank is not None
        rest = (config, placement)
        query_axes = ("embed", None, None)
        self.query = Projection("BTR,RIH->BTIH", (rank, heads, width), query_axes, *rest)
        self.key = Projection("BTD,DH->BTH", (dim, width), ("embed", None), *rest)
        self.key_norm = LayerNorm(config, width)
        self.weights = Projection("BTD,DI->BTI", (dim, heads), ("embed", None), *rest)
        self.scale, self.rope_dim = (heads * width) ** -0.5, config.latent.rope_dim
        self.placement = placement
        if config.indexer.loss == 0:
            _freeze(self)

    def __call__(
        self, x_BTD: jax.Array, latent_BTR: jax.Array, rope: tuple[jax.Array, jax.Array] | None
    ) -> Index:
        """Index queries [B, T, I, H], weights float32 [B, T, I] and keys [B, T, H]."""
        x_BTD, latent_BTR = jax.lax.stop_gradient((x_BTD, latent_BTR))
        query = self._rotated(self.query(latent_BTR), rope)
        key = self._rotated(self.key_norm(self.key(x_BTD))[:, :, None], rope)[:, :, 0]
        weights = self.scale * self.weights(x_BTD).astype(jnp.float32)
        place = self.placement.activation
        return Index(
            place(query, "batch", "sequence", None, None),
            place(weights, "batch", "sequence", None),
            place(key, "batch", "sequence", None),
        )

    def _rotated(self, x: jax.Array, rope: tuple[jax.Array, jax.Array] | None) -> jax.Array:
        if rope is None:
            return x
        rotated, rest = jnp.split(x, [self.rope_dim], axis=-1)
        return jnp.concatenate([rotate(rotated, rope), rest], axis=-1)


def _freeze(module: nnx.Module) -> None:
    """Marks every parameter as one that training leaves alone."""
    for _, param in nnx.iter_graph(module):
        if isinstance(param, nnx.Param):
            param.set_metadata(role=replace(param.get_metadata("role"), trained=False))
