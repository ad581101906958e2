"""Rotary position embeddings, half-split pairing as in Llama's Hugging Face form.

Source: Su et al. 2021 (arXiv 2104.09864); frequency scaling by band as published with Llama 3.1.
"""

# B batch, T position, N heads, H head width

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from configs.schema import RopeScalingConfig


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScalingConfig) -> np.ndarray:
    """Angle per position of each rotated pair: float32 [H/2]."""
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling.type == "linear":
        frequencies = frequencies / scaling.factor
    if scaling.type == "llama3":
        frequencies = _scale_by_band(frequencies, scaling)
    return frequencies.astype(np.float32)


def _scale_by_band(frequencies: np.ndarray, scaling: RopeScalingConfig) -> np.ndarray:
    """Long wavelengths are slowed by the factor, short ones kept, those between blended."""
    turns = scaling.original_seq_len * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rope_tables(positions_BT: jax.Array, frequencies: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of every position's angles: float32 [B, T, 1, H/2] each."""
    angles = positions_BT[..., None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BTNH: jax.Array, tables: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates pair (i, i + H/2) of every head by its position's angle; keeps the dtype."""
    cos, sin = tables
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BTNH.dtype)
