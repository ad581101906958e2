"""Self-attention: from activations to queries, keys and values, and back."""

# B batch, T query position, S key position, D model width,
# N query heads, K key/value heads, H head width

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from configs.model_schema import ModelConfig
from model.latent_keys import LatentKeys
from model.layer_plan import LayerKind
from model.norm import RMSNorm
from model.parameters import VECTOR, declare
from model.placement import Placement
from model.projection import Projection
from model.rope import RopeTables, rotate
from parallelism import AttentionMask, Constant, Index


class Attend(Protocol):
    """How queries meet keys: the training attention, or one over a key/value cache."""

    def __call__(
        self,
        query_BTNH: jax.Array,
        key_BTKH: jax.Array,
        value_BTKH: jax.Array | None,
        /,
        *,
        mask: AttentionMask,
        scale: float,
        soft_cap: float | None = None,
        sinks: jax.Array | None = None,
        expand: LatentKeys | None = None,
        weights: jax.Array | None = None,
        index: Index | None = None,
        trains_index: bool = False,
    ) -> tuple[jax.Array, Any]:
        """Returns the output [B, T, N, H] and whatever the caller wants back: a new cache, or the
        loss of an index that is trained, float32 [B, T].

        Latent attention gives narrow keys, no values, and what makes both of them; and an index
        where the mask chooses keys.
        """


class SelfAttention(nnx.Module):
    """Grouped-query attention; how keys are met is the caller's."""

    def __init__(self, config: ModelConfig, kind: LayerKind, placement: Placement) -> None:
        dim, heads, width = config.embed_dim, config.num_heads, config.head_dim
        kv_shape, kv_axes = (dim, config.num_kv_heads, width), ("embed", "kv_heads", "head_dim")
        axes = ("embed", "heads", "head_dim")
        bias = config.attention_bias != "none"
        rest = (config, placement)
        self.query = Projection("BTD,DNH->BTNH", (dim, heads, width), axes, *rest, bias=bias)
        self.key = Projection("BTD,DKH->BTKH", kv_shape, kv_axes, *rest, bias=bias)
        self.value = Projection("BTD,DKH->BTKH", kv_shape, kv_axes, *rest, bias=bias)
        self.out = Projection(
            "BTNH,NHD->BTD",
            (heads, width, dim),
            ("heads", "head_dim", "embed"),
            *rest,
            bias=config.attention_bias == "all",
            to_residual=True,
        )
        self.query_norm = _head_norm(config, heads, "heads")
        self.key_norm = _head_norm(config, config.num_kv_heads, "kv_heads")
        dtype, zero = jnp.dtype(config.param_dtype), Constant(0.0)
        self.sinks = declare((heads,), ("heads",), zero, dtype, VECTOR) if config.sinks else None
        self.mask = AttentionMask(window=kind.window)
        self.scale = (config.query_scale or width) ** -0.5
        self.soft_cap, self.interleaved = config.attention_soft_cap, config.rope_interleaved
        self.kind, self.placement = kind, placement

    def __call__(self, x_BTD: jax.Array, rope: RopeTables, attend: Attend) -> tuple[jax.Array, Any]:
        query = self._positioned(self.query(x_BTD), self.query_norm, rope)
        key = self._positioned(self.key(x_BTD), self.key_norm, rope)
        out, extra = attend(
            self._by_heads(checkpoint_name(query, "query"), "heads"),
            self._by_heads(checkpoint_name(key, "key"), "kv_heads"),
            self._by_heads(checkpoint_name(self.value(x_BTD), "value"), "kv_heads"),
            mask=self.mask,
            scale=self.scale,
            soft_cap=self.soft_cap,
            sinks=None if self.sinks is None else self.sinks[...],
        )
        return self.out(checkpoint_name(out, "attention_out")), extra

    def _positioned(self, x: jax.Array, norm: RMSNorm | None, rope: RopeTables) -> jax.Array:
        x = x if norm is None else norm(x)
        return x if self.kind.rope is None else rotate(x, rope[self.kind.rope], self.interleaved)

    def _by_heads(self, x: jax.Array, heads: str) -> jax.Array:
        return self.placement.activation(x, "batch", "sequence", heads, None)


def _head_norm(config: ModelConfig, heads: int, axis: str) -> RMSNorm | None:
    if config.qk_norm == "none":
        return None
    if config.qk_norm == "head":
        return RMSNorm(config, (config.head_dim,))
    return RMSNorm(config, (heads, config.head_dim), (axis, "head_dim"))
