"""Decoding with a key/value cache: the same layers, met by another attention."""

# B batch, T new tokens, S cache slots, N query heads, K key/value heads, G queries per
# key/value head, H head width, L layers

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from configs.schema import ModelConfig
from model.transformer import Transformer


class Cache(NamedTuple):
    """Keys and values of all layers, [L, B, S, K, H], of which the first `length` are filled."""

    key: jax.Array
    value: jax.Array
    length: jax.Array


def empty_cache(config: ModelConfig, batch: int, slots: int, dtype: jnp.dtype) -> Cache:
    """A cache with room for `slots` tokens a row."""
    shape = (config.num_layers, batch, slots, config.num_kv_heads, config.head_dim)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((), jnp.int32))


def extend(model: Transformer, tokens_BT: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Appends tokens to the cached rows.

    Returns the logits of the new tokens, float32 [B, T, V], and the longer cache. The caller
    keeps the length within the cache's slots.
    """
    positions_BT = cache.length + jnp.broadcast_to(
        jnp.arange(tokens_BT.shape[1], dtype=jnp.int32), tokens_BT.shape
    )

    def attend_with(layer: tuple[jax.Array, jax.Array]):  # noqa: ANN202
        def attend(query: jax.Array, key: jax.Array, value: jax.Array):  # noqa: ANN202
            keys = jax.lax.dynamic_update_slice_in_dim(layer[0], key, cache.length, axis=1)
            values = jax.lax.dynamic_update_slice_in_dim(layer[1], value, cache.length, axis=1)
            return cached_attention(query, keys, values, positions_BT), (keys, values)

        return attend

    x_BTD, (key, value) = model.apply_layers(
        model.embed(tokens_BT), positions_BT, attend_with, (cache.key, cache.value)
    )
    logits = model.logits(model.final_norm(x_BTD))
    return logits, Cache(key, value, cache.length + tokens_BT.shape[1])


def cached_attention(
    query_BTNH: jax.Array, key_BSKH: jax.Array, value_BSKH: jax.Array, positions_BT: jax.Array
) -> jax.Array:
    """Causal attention of a few queries over a cache whose slot s holds position s."""
    batch, length, heads, width = query_BTNH.shape
    kv_heads = key_BSKH.shape[2]
    query = query_BTNH.reshape(batch, length, kv_heads, heads // kv_heads, width)
    scores = jnp.einsum(
        "BTKGH,BSKH->BKGTS", query, key_BSKH, preferred_element_type=jnp.float32
    ) / jnp.sqrt(jnp.float32(width))
    visible = jnp.arange(key_BSKH.shape[1]) <= positions_BT[:, None, None, :, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e30), axis=-1)
    out = jnp.einsum("BKGTS,BSKH->BTKGH", weights.astype(value_BSKH.dtype), value_BSKH)
    return out.reshape(query_BTNH.shape)
