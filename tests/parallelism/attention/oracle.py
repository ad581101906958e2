"""Attention the slow, obvious way, in NumPy float64 and contiguous order, with its gradients.

Legend: B batch, T queries, S keys, N query heads, K key/value heads, G = N/K.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Gradients(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    sinks: np.ndarray | None


def allowed(query_index, key_index, causal=True, window=None, segments=None):
    """Who attends to whom, bool [B or 1, T, S]; segment 0 attends to nothing."""
    distance = query_index[..., :, None] - key_index[..., None, :]
    mask = np.ones_like(distance, bool)
    if causal:
        mask &= distance >= 0
    if window is not None:
        mask &= np.abs(distance) < window
    mask = mask.reshape(-1, *mask.shape[-2:])
    if segments is not None:
        same = segments[:, :, None] == segments[:, None, :]
        mask = mask & same & (segments != 0)[:, :, None]
    return mask


def best(mask, query, weights, key, count):
    """Of the allowed keys of each query, the `count` that its index scores highest: [B, T, S].

    Where the last place is shared (no head is for any of these keys: score 0), all count.
    """
    query, weights, key = (np.asarray(x, np.float64) for x in (query, weights, key))
    products = np.maximum(np.einsum("btid,bsd->btis", query, key), 0)
    scores = np.where(mask, np.einsum("bti,btis->bts", weights, products), -np.inf)
    last = np.sort(scores, axis=-1)[..., -count, None]
    return mask & (scores >= last)


def attention(query, key, value, mask, *, sinks=None, scale=None, soft_cap=None):
    """Output [B, T, N, Hv] and a function from its gradient to the Gradients."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    groups = query.shape[2] // key.shape[2]
    key_n, value_n = (np.repeat(x, groups, axis=2) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * np.einsum("btnh,bsnh->bnts", query, key_n)
    capped = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
    capped = np.where(mask[:, None], capped, -np.inf)
    sink = np.full(query.shape[2], -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    top = np.maximum(capped.max(-1), sink[None, :, None])
    top = np.where(np.isfinite(top), top, 0.0)[..., None]
    weights, sink_weight = np.exp(capped - top), np.exp(sink[None, :, None, None] - top)
    total = weights.sum(-1, keepdims=True) + sink_weight
    total = np.where(total == 0, 1.0, total)
    weights, sink_weight = weights / total, (sink_weight / total)[..., 0]
    out = np.einsum("bnts,bsnh->btnh", weights, value_n)

    def gradients(out_gradient):
        g = np.asarray(out_gradient, np.float64)
        by_weight = np.einsum("btnh,bsnh->bnts", g, value_n)
        delta = (g * out).sum(-1).swapaxes(1, 2)
        by_score = weights * (by_weight - delta[..., None])
        if soft_cap is not None:
            by_score = by_score * (1 - np.tanh(scores / soft_cap) ** 2)
        dq = scale * np.einsum("bnts,bsnh->btnh", by_score, key_n)
        dk = _sum_groups(scale * np.einsum("bnts,btnh->bsnh", by_score, query), groups)
        dv = _sum_groups(np.einsum("bnts,btnh->bsnh", weights, g), groups)
        ds = None if sinks is None else -(sink_weight * delta).sum((0, 2))
        return Gradients(dq, dk, dv, ds)

    return out, gradients


def _sum_groups(x, groups):
    """The gradient of heads that were repeated: [B, S, K*G, H] -> [B, S, K, H]."""
    return x.reshape(*x.shape[:2], -1, groups, x.shape[-1]).sum(3)
