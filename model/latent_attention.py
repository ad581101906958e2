"""Multi-head latent attention: queries, keys and values are expanded from narrow latents.

Where the keys are expanded is up to who attends: before, on one device; block by block after the
narrow ones have travelled, over context ranks (attend.py); never, over a cache (decode.py).

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; as released, with the rotary part of the key
shared by all heads.
"""

# B batch, T position, D model width, N heads, R width of a latent, H head width

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from configs.model_schema import ModelConfig
from model.attention import Attend
from model.indexer import Indexer
from model.latent_keys import LatentKeys
from model.layer_plan import LayerKind
from model.norm import RMSNorm
from model.placement import Placement
from model.projection import Projection
from model.rope import RopeTables, rotate, score_factor
from parallelism import AttentionMask

LATENT_NORM_EPS = 1e-6  # the released code leaves it at this, whatever the config says


class LatentAttention(nnx.Module):
    """A head is [nope, rope]: a part without positions and a part that is rotated."""

    def __init__(self, config: ModelConfig, kind: LayerKind, placement: Placement) -> None:
        latent, dim, heads = config.latent, config.embed_dim, config.num_heads
        assert latent.kv_rank is not None
        rest, bias = (config, placement), config.attention_bias != "none"
        by_head, axes = ("heads", "head_dim"), ("embed", "heads", "head_dim")
        if (rank := latent.query_rank) is None:
            self.query = Projection("BTD,DNH->BTNH", (dim, heads, config.head_dim), axes, *rest)
        else:
            down_axes = ("embed", None)
            self.query_down = Projection("BTD,DR->BTR", (dim, rank), down_axes, *rest, bias=bias)
            self.query_norm = RMSNorm(config, (rank,), eps=LATENT_NORM_EPS)
            self.query_up = Projection("BTR,RNH->BTNH", (rank, heads, config.head_dim), axes, *rest)
        down = (dim, latent.kv_rank + latent.rope_dim)
        self.kv_down = Projection("BTD,DR->BTR", down, ("embed", None), *rest, bias=bias)
        self.kv_norm = RMSNorm(config, (latent.kv_rank,), eps=LATENT_NORM_EPS)
        up = (latent.kv_rank, heads, latent.nope_dim + latent.value_dim)
        self.kv_up = Projection("BTR,RNH->BTNH", up, ("embed", *by_head), *rest)
        self.out = Projection(
            "BTNH,NHD->BTD",
            (heads, latent.value_dim, dim),
            (*by_head, "embed"),
            *rest,
            bias=bias,
            to_residual=True,
        )
        top_k = config.indexer.top_k if config.indexer.num_heads else None
        self.mask = AttentionMask(window=kind.window, top_k=top_k)
        scale = (config.query_scale or config.head_dim) ** -0.5
        self.scale = scale * score_factor(config.rope_scaling)
        self.expand = LatentKeys.of(latent)
        if config.indexer.num_heads:
            self.indexer = Indexer(config, placement)
        self.config, self.kind, self.placement = config, kind, placement

    def __call__(self, x_BTD: jax.Array, rope: RopeTables, attend: Attend) -> tuple[jax.Array, Any]:
        latent = x_BTD
        if self.config.latent.query_rank is not None:
            latent = self.query_norm(self.query_down(x_BTD))
        query = checkpoint_name(self._query(latent, rope), "query")
        index = None
        if self.mask.top_k is not None:
            index = self.indexer(x_BTD, latent, self.kind.rope and rope[self.kind.rope])
        out, extra = attend(
            self.placement.activation(query, "batch", "sequence", "heads", None),
            self.placement.activation(
                self._narrow_key(x_BTD, rope), "batch", "sequence", None, None
            ),
            None,
            mask=self.mask,
            scale=self.scale,
            soft_cap=self.config.attention_soft_cap,
            expand=self.expand,
            weights=self.kv_up.whole_kernel(x_BTD.dtype),
            index=index,
            trains_index=self.config.indexer.loss > 0,
        )
        return self.out(checkpoint_name(out, "attention_out")), extra

    def _query(self, latent_BTR: jax.Array, rope: RopeTables) -> jax.Array:
        """[B, T, N, nope + rope], from a latent or straight from the input."""
        latent = self.config.latent
        up = self.query if latent.query_rank is None else self.query_up
        nope, rotated = jnp.split(up(latent_BTR), [latent.nope_dim], axis=-1)
        return jnp.concatenate([nope, self._rotated(rotated, rope)], axis=-1)

    def _narrow_key(self, x_BTD: jax.Array, rope: RopeTables) -> jax.Array:
        """[B, T, 1, R + rope]: the normalised latent and the key that all heads share."""
        rank = self.expand.rank
        down = self.kv_down(x_BTD)[:, :, None]
        shared = self._rotated(down[..., rank:], rope)
        return jnp.concatenate([self.kv_norm(down[..., :rank]), shared], axis=-1)

    def _rotated(self, x: jax.Array, rope: RopeTables) -> jax.Array:
        if self.kind.rope is None:
            return x
        return rotate(x, rope[self.kind.rope], self.config.rope_interleaved)
