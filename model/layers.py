"""The decoder layer: attention and a feed-forward layer on one residual stream."""

# B batch, T query position, D model width

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from flax import nnx

from configs.model_schema import ModelConfig
from model.attention import Attend, SelfAttention
from model.latent_attention import LatentAttention
from model.layer_plan import LayerKind
from model.mlp import GatedMLP
from model.moe import Load, MixtureOfExperts
from model.norm import RMSNorm
from model.placement import Placement
from model.rope import RopeTables


class Tokens(NamedTuple):
    """What layers know about the tokens beside their activations."""

    rope: RopeTables
    valid: jax.Array  # bool [B, T]: not padding


class DecoderLayer(nnx.Module):
    """x + attention(x), then x + mlp(x), each normalised before, after, or both."""

    def __init__(self, config: ModelConfig, kind: LayerKind, placement: Placement) -> None:
        attention = SelfAttention if config.latent.kv_rank is None else LatentAttention
        self.attention_norm, self.attention_post_norm = _norms(config)
        self.attention = attention(config, kind, placement)
        self.mlp_norm, self.mlp_post_norm = _norms(config)
        self.sparse = kind.sparse
        if kind.sparse:
            self.moe = MixtureOfExperts(config, placement)
        else:
            self.mlp = GatedMLP(config, config.mlp_dim, placement)
        self.placement = placement

    def __call__(
        self, x_BTD: jax.Array, tokens: Tokens, attend: Attend
    ) -> tuple[jax.Array, tuple[Any, Load | None]]:
        """The next activations, and what `attend` gave back with the load of the experts."""
        with jax.named_scope("attention"):
            y, cache = self.attention(_normed(self.attention_norm, x_BTD), tokens.rope, attend)
        x_BTD = self._residual(x_BTD + _normed(self.attention_post_norm, y))
        with jax.named_scope("mlp"):
            y, load = self._feed_forward(_normed(self.mlp_norm, x_BTD), tokens)
        return self._residual(x_BTD + _normed(self.mlp_post_norm, y)), (cache, load)

    def _feed_forward(self, x: jax.Array, tokens: Tokens) -> tuple[jax.Array, Load | None]:
        return self.moe(x, tokens.valid) if self.sparse else (self.mlp(x), None)

    def _residual(self, x_BTD: jax.Array) -> jax.Array:
        return self.placement.activation(x_BTD, "batch", "sequence", None)


def _norms(config: ModelConfig) -> tuple[RMSNorm | None, RMSNorm | None]:
    """The norms before and after a sublayer."""
    before, after = config.norm_placement != "post", config.norm_placement != "pre"
    width = (config.embed_dim,)
    return (
        RMSNorm(config, width) if before else None,
        RMSNorm(config, width) if after else None,
    )


def _normed(norm: RMSNorm | None, x: jax.Array) -> jax.Array:
    return x if norm is None else norm(x)
