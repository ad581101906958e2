"""Llama in NumPy float64, slow and obvious: what the model under test must compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from configs.model_schema import ModelConfig


def logits(
    parameters: Any,
    config: ModelConfig,
    tokens: np.ndarray,
    positions: np.ndarray,
    segment_ids: np.ndarray,
) -> np.ndarray:
    """Logits [T, V] of one row; `parameters` are unrolled, layers keyed by number."""
    p = _as_float64(parameters)
    x = p["embedding"][tokens]
    order = np.arange(len(tokens))
    visible = (order[:, None] >= order) & (segment_ids[:, None] == segment_ids)
    for number in range(config.num_layers):
        layer = p["layers"][str(number)]
        y = _norm(x, layer["attention_norm"]["scale"], config)
        x = x + _attention(layer["attention"], y, visible, positions, config)
        y = _norm(x, layer["mlp_norm"]["scale"], config)
        mlp = layer["mlp"]
        gate = y @ mlp["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ mlp["up"]["kernel"])) @ mlp["down"]["kernel"]
    head = p["embedding"].T if config.tie_embeddings else p["head"]
    return _norm(x, p["final_norm"]["scale"], config) @ head


def token_losses(logits_TV: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """-log softmax(logits)[target] of each row."""
    top = logits_TV.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits_TV - top).sum(-1)) + top[:, 0]
    return log_sum - logits_TV[np.arange(len(targets)), targets]


def _as_float64(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _as_float64(leaf) for name, leaf in tree.items()}
    return np.asarray(tree, np.float64)


def _norm(x: np.ndarray, scale: np.ndarray, config: ModelConfig) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * scale


def _rotate(x_TNH: np.ndarray, positions: np.ndarray, config: ModelConfig) -> np.ndarray:
    half = config.head_dim // 2
    angle = positions[:, None] * config.rope_theta ** (-np.arange(half) * 2 / config.head_dim)
    turn = np.exp(1j * angle)[:, None, :]
    turned = (x_TNH[..., :half] + 1j * x_TNH[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _attention(
    layer: Any, x: np.ndarray, visible: np.ndarray, positions: np.ndarray, config: ModelConfig
) -> np.ndarray:
    query = _rotate(np.einsum("td,dnh->tnh", x, layer["query"]["kernel"]), positions, config)
    key = _rotate(np.einsum("td,dkh->tkh", x, layer["key"]["kernel"]), positions, config)
    value = np.einsum("td,dkh->tkh", x, layer["value"]["kernel"])
    groups = config.num_heads // config.num_kv_heads
    out = np.zeros(query.shape)
    for head in range(config.num_heads):
        scores = query[:, head] @ key[:, head // groups].T / np.sqrt(config.head_dim)
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = weights / weights.sum(-1, keepdims=True) @ value[:, head // groups]
    return np.einsum("tnh,nhd->td", out, layer["out"]["kernel"])
