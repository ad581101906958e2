"""Attention over whole rows, as a model trains and is scored: the placement's set-up."""

# B batch, T position, N query heads, K key/value heads, H and V widths of a query and a value head,
# W width of a narrow key

from __future__ import annotations

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from model.attention import Attend
from model.latent_keys import LatentKeys
from model.placement import Placement
from parallelism import Index, attention, attention_and_index_loss

HEADS = ("batch", "sequence", "heads", None)
KV_HEADS = ("batch", "sequence", "kv_heads", None)
NARROW = ("batch", "sequence", None, None)


def attend_within(placement: Placement, segment_ids_BT: jax.Array | None) -> Attend:
    """Attention within the segments of each row; None is one segment a row."""
    if segment_ids_BT is not None:
        segment_ids_BT = placement.fold(segment_ids_BT, "batch", "sequence")

    def attend(
        query_BTNH: jax.Array,
        key: jax.Array,
        value: jax.Array | None,
        *,
        expand: LatentKeys | None = None,
        weights: jax.Array | None = None,
        index: Index | None = None,
        trains_index: bool = False,
        **rule: Any,
    ) -> tuple[jax.Array, jax.Array | None]:
        if expand is not None and weights is not None:
            if _narrow_keys_travel(placement, expand, query_BTNH, weights):
                key = checkpoint_name(key, "key")
                weights = placement.of_own_heads(weights, ("embed", "heads", None))
                rule |= {"expand": expand, "weights": weights}
            else:
                key, value = _expanded(placement, expand, key, weights)
        if index is not None:
            rule["index"] = _folded(placement, index)
        given = (attention_and_index_loss if trains_index else attention)(
            placement.fold(query_BTNH, *HEADS),
            placement.fold(key, *(NARROW if value is None else KV_HEADS)),
            None if value is None else placement.fold(value, *KV_HEADS),
            setup=placement.attention,
            segment_ids=segment_ids_BT,
            **rule,
        )
        out, index_loss = given if isinstance(given, tuple) else (given, None)
        if index_loss is not None:
            index_loss = placement.unfold(index_loss, "batch", "sequence")
        return placement.unfold(out, *HEADS), index_loss

    return attend


def _folded(placement: Placement, index: Index) -> Index:
    return Index(
        placement.fold(index.query, "batch", "sequence", None, None),
        placement.fold(index.weights, "batch", "sequence", None),
        placement.fold(index.key, "batch", "sequence", None),
    )


def _expanded(
    placement: Placement, expand: LatentKeys, narrow_BT1W: jax.Array, weights_RNV: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Keys [B, T, N, H] and values [B, T, N, V], before they are exchanged."""
    key, value = expand(narrow_BT1W, weights_RNV)
    key, value = checkpoint_name(key, "key"), checkpoint_name(value, "value")
    return placement.activation(key, *KV_HEADS), placement.activation(value, *KV_HEADS)


def _narrow_keys_travel(
    placement: Placement, expand: LatentKeys, query_BTNH: jax.Array, weights_RNV: jax.Array
) -> bool:
    """Whether ranks exchange narrow keys and expand those of all tokens, and not just their own.

    They do where fewer bytes travel then. With all_gather and ring this costs as many more FLOPs
    as there are other ranks: about 0.8 R for each byte saved in bfloat16 (DeepSeek's R of 512: 400,
    and links of accelerators move a byte in the time of over 1000). With ulysses a rank expands
    its own heads alone, the same FLOPs, but each rank wants the narrow keys of all tokens.
    """
    setup = placement.attention
    context = setup.axis_size(setup.context_axis)
    num_heads, width = query_BTNH.shape[2:]
    narrow = expand.rank + width - expand.nope_dim
    wide = width + weights_RNV.shape[2] - expand.nope_dim
    copies = context if setup.exchanges_heads else 1
    heads_here = max(1, num_heads // setup.axis_size(setup.heads_axis))
    return context > 1 and copies * narrow < heads_here * wide
