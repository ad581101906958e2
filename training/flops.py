"""Floating-point operations of a step, counted from the model's shapes, and device peaks."""

# B rows, T tokens a row, L layers, N query heads, H head width

from __future__ import annotations

import math
from typing import Any

import jax

from configs.model_schema import ModelConfig
from model.layer_plan import layer_kinds
from parallelism import ParamSpec

# Dense bfloat16 peaks in TFLOP/s a device, as their makers publish them.
_PEAK_TFLOPS = {
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "NVIDIA A100": 312.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
}


def matmul_parameters(specs: Any, model: ModelConfig) -> int:
    """Parameters that multiply a token: no vectors, no table that is only looked up, and of the
    experts as many as a token goes to."""
    leaves = jax.tree.leaves(specs)
    sizes = sum(_active(leaf, model) for leaf in leaves if _is_matrix(leaf))
    return sizes - (0 if model.tie_embeddings else model.vocab_size * model.embed_dim)


def _active(spec: ParamSpec, model: ModelConfig) -> int:
    size = math.prod(spec.shape)
    if "expert" not in spec.axes:
        return size
    return size * model.moe.experts_per_token // model.moe.num_experts


def step_flops(specs: Any, model: ModelConfig, rows: int, seq_len: int, causal: bool = True) -> int:
    """Forward and backward of one optimizer step: 6 a parameter and token, 12 N H a pair and layer.

    `causal` counts the pairs that attend, T (T+1) / 2 without a window; otherwise the full square.
    Of sparse attention these are the chosen pairs, and 2 I H for each pair that its index scores,
    4 I H more for each that is chosen where the indexer is trained.
    What remat computes again is not counted (model FLOPs, as in the PaLM paper's MFU).
    """
    latent = model.latent
    value_dim = model.head_dim if latent.kv_rank is None else latent.value_dim
    windows, indexer = [kind.window for kind in layer_kinds(model)], model.indexer
    scored = sum(_pairs(seq_len, window, causal) for window in windows) if indexer.num_heads else 0
    if indexer.num_heads:
        windows = [min(window or seq_len, indexer.top_k) for window in windows]
    pairs = sum(_pairs(seq_len, window, causal) for window in windows)
    attention = 6 * model.num_heads * (model.head_dim + value_dim) * pairs
    learned = 2 * pairs if indexer.loss else 0
    attention += 2 * indexer.num_heads * indexer.head_dim * (scored + learned)
    return rows * (6 * matmul_parameters(specs, model) * seq_len + attention)


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of one device, or None where it is not known."""
    matches = [name for name in _PEAK_TFLOPS if device_kind.startswith(name)]
    return _PEAK_TFLOPS[max(matches, key=len)] * 1e12 if matches else None


def _pairs(seq_len: int, window: int | None, causal: bool) -> int:
    """Pairs of a query and a key in one layer and row."""
    if not causal:
        return seq_len * seq_len
    seen = min(window or seq_len, seq_len)
    return seen * (seen + 1) // 2 + (seq_len - seen) * seen


def _is_matrix(spec: ParamSpec) -> bool:
    return len(spec.shape) - isinstance(spec.layers, tuple) > 1
