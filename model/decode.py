"""Decoding with a key/value cache: the same layers, met by another attention."""

# B batch, T new tokens, S cache slots, N query heads, K key/value heads, G queries per
# key/value head, H head width, L layers

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from configs.model_schema import ModelConfig
from model.attention import Attend
from model.latent_keys import LatentKeys
from model.transformer import Transformer
from parallelism import AttentionMask, Index
from parallelism.attention.selection import index_scores, least_of_best


class Cache(NamedTuple):
    """Keys and values of all layers, [L, B, S, K, H], of which the first `length` are filled.

    Latent attention has narrow keys alone, [L, B, S, 1, W], and attends to them as they are. Sparse
    attention has the keys of its index beside them, [L, B, S, D].

    Rows end together: a shorter row has `padding` more slots in front, int32 [B], which nothing
    attends to. With padding 2, the slots of a row hold the positions - - 0 1 2 3.
    """

    key: jax.Array
    value: jax.Array | None
    length: jax.Array
    padding: jax.Array
    index_key: jax.Array | None = None


def empty_cache(
    config: ModelConfig, batch: int, slots: int, dtype: jnp.dtype, padding: Any = 0
) -> Cache:
    """A cache with room for `slots` tokens a row, `padding` ones included: an integer, or [B]."""
    latent, rows = config.latent, (config.num_layers, batch, slots)
    if latent.kv_rank is None:
        shape = (*rows, config.num_kv_heads, config.head_dim)
    else:
        shape = (*rows, 1, latent.kv_rank + latent.rope_dim)
    has_index = config.indexer.num_heads > 0
    return Cache(
        jnp.zeros(shape, dtype),
        jnp.zeros(shape, dtype) if latent.kv_rank is None else None,
        jnp.zeros((), jnp.int32),
        jnp.broadcast_to(jnp.asarray(padding, jnp.int32), (batch,)),
        jnp.zeros((*rows, config.indexer.head_dim), dtype) if has_index else None,
    )


def extend(model: Transformer, tokens_BT: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Appends tokens to the cached rows.

    Returns the logits of the new tokens, float32 [B, T, V], and the longer cache. The caller
    keeps the length within the cache's slots.
    """
    new_T = cache.length + jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)
    positions_BT = new_T - cache.padding[:, None]

    def attend_with(layer: tuple[jax.Array | None, ...]) -> Attend:
        def attend(
            query: jax.Array,
            *new: jax.Array | None,
            expand: LatentKeys | None = None,
            weights: Any = None,
            index: Index | None = None,
            trains_index: bool = False,
            **rule: Any,
        ) -> Any:
            del trains_index
            filled = jax.tree.map(
                lambda old, x: jax.lax.dynamic_update_slice_in_dim(old, x, cache.length, axis=1),
                layer,
                (*new, None if index is None else index.key),
            )
            keys, values, index_keys = filled
            if index is not None:
                rule["index"] = index._replace(key=index_keys)
            if expand is not None:
                query, values = expand.absorb(query, weights), keys[..., : expand.rank]
            out = cached_attention(query, keys, values, positions_BT, cache.padding, **rule)
            return out if expand is None else expand.values(out, weights), filled

        return attend

    caches = (cache.key, cache.value, cache.index_key)
    x_BTD, (key, value, index_key), _ = model.apply_layers(
        model.embed(tokens_BT), positions_BT, attend_with, caches
    )
    logits = model.logits(model.final_norm(x_BTD))
    length = cache.length + tokens_BT.shape[1]
    return logits, Cache(key, value, length, cache.padding, index_key)


def cached_attention(
    query_BTNH: jax.Array,
    key_BSKH: jax.Array,
    value_BSKH: jax.Array,
    positions_BT: jax.Array,
    padding_B: jax.Array,
    *,
    mask: AttentionMask,
    scale: float,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    index: Index | None = None,
) -> jax.Array:
    """Attention of a few queries over a cache whose slot s holds position s - padding."""
    batch, length, heads, width = query_BTNH.shape
    kv_heads = key_BSKH.shape[2]
    query = query_BTNH.reshape(batch, length, kv_heads, heads // kv_heads, width)
    scores = scale * jnp.einsum(
        "BTKGH,BSKH->BKGTS", query, key_BSKH, preferred_element_type=jnp.float32
    )
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    slots_BS = jnp.arange(key_BSKH.shape[1]) - padding_B[:, None]
    attended_BTS = _attended(mask, positions_BT, slots_BS, index)
    scores = jnp.where(attended_BTS[:, None, None], scores, -1e30)
    if sinks is not None:
        column = sinks.astype(jnp.float32).reshape(1, kv_heads, -1, 1, 1)
        column = jnp.broadcast_to(column, (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, column], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : key_BSKH.shape[1]]
    out = jnp.einsum("BKGTS,BSKH->BTKGH", weights.astype(value_BSKH.dtype), value_BSKH)
    return out.reshape(batch, length, heads, -1)


def _attended(
    mask: AttentionMask, positions_BT: jax.Array, slots_BS: jax.Array, index: Index | None
) -> jax.Array:
    """Which slots, numbered by position, each query attends to: bool [B, T, S]."""
    least, most = mask.reach
    distance = positions_BT[:, :, None] - slots_BS[:, None, :]
    attended_BTS = (distance >= least) & (distance <= most) & (slots_BS >= 0)[:, None, :]
    if index is None or mask.top_k is None:
        return attended_BTS
    scores = jnp.where(attended_BTS, index_scores(*index), -jnp.inf)
    return attended_BTS & (scores >= least_of_best(scores, mask.top_k)[..., None])
