"""Rotary position embeddings and their scalings.

Sources: Su et al. 2021 (arXiv 2104.09864); llama3, frequency scaling by band, as published with
Llama 3.1; yarn, Peng et al. 2023 (arXiv 2309.00071), with DeepSeek's two mscales.
"""

# B batch, T position, N heads, H head width

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from configs.model_schema import ModelConfig, RopeScalingConfig
from model.layer_plan import layer_kinds

RopeTables = dict[str, tuple[jax.Array, jax.Array]]
"""Cosines and sines, float32 [B, T, 1, H/2] each, for "global" layers and for "local" ones."""


def rope_tables(config: ModelConfig, positions_BT: jax.Array) -> RopeTables:
    """The tables that the layers of a model read, once for all of them."""
    width = config.head_dim if config.latent.kv_rank is None else config.latent.rope_dim
    theta = {"global": config.rope_theta, "local": config.rope_local_theta}
    tables: RopeTables = {}
    for name in sorted({kind.rope for kind in layer_kinds(config) if kind.rope is not None}):
        base, scaling = theta[name], config.rope_scaling
        assert base is not None
        if name == "local":
            scaling = RopeScalingConfig(type="none")
        frequencies = rope_frequencies(width, base, scaling)
        angles = positions_BT[..., None, None].astype(jnp.float32) * frequencies
        factor = attention_factor(scaling)
        tables[name] = (jnp.cos(angles) * factor, jnp.sin(angles) * factor)
    return tables


def rotate(
    x_BTNH: jax.Array, tables: tuple[jax.Array, jax.Array], interleaved: bool = False
) -> jax.Array:
    """Rotates the pairs of every head by their position's angle; keeps the dtype.

    Pair i is (i, i + H/2), or (2i, 2i + 1) when interleaved; the result has the former order in
    both cases, which changes no product of two rotated heads.
    """
    cos, sin = tables
    x = x_BTNH.astype(jnp.float32)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BTNH.dtype)


def rope_frequencies(width: int, theta: float, scaling: RopeScalingConfig) -> np.ndarray:
    """Angle per position of each rotated pair: float32 [width / 2]."""
    frequencies = theta ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    if scaling.type == "linear":
        frequencies = frequencies / scaling.factor
    if scaling.type == "llama3":
        frequencies = _scale_by_band(frequencies, scaling)
    if scaling.type == "yarn":
        frequencies = _scale_by_ramp(frequencies, theta, scaling)
    return frequencies.astype(np.float32)


def attention_factor(scaling: RopeScalingConfig) -> float:
    """What yarn multiplies queries and keys by; 1 for the others."""
    if scaling.type != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        numerator = yarn_mscale(scaling.factor, scaling.mscale)
        return numerator / yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    return yarn_mscale(scaling.factor, 1.0)


def score_factor(scaling: RopeScalingConfig) -> float:
    """What latent attention's scores are multiplied by on top: mscale_all_dim's factor, squared."""
    if scaling.type == "none" or not scaling.mscale_all_dim:
        return 1.0
    return yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2


def yarn_mscale(factor: float, mscale: float) -> float:
    """0.1 mscale ln(factor) + 1, yarn's fit to the temperature that a longer context wants."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _scale_by_band(frequencies: np.ndarray, scaling: RopeScalingConfig) -> np.ndarray:
    """Long wavelengths are slowed by the factor, short ones kept, those between blended."""
    turns = scaling.original_seq_len * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _scale_by_ramp(frequencies: np.ndarray, theta: float, scaling: RopeScalingConfig) -> np.ndarray:
    """Pairs with many turns over the original length are kept, those with few are slowed."""
    width = 2 * len(frequencies)

    def pair_with(turns: float) -> float:
        wavelength = scaling.original_seq_len / (turns * 2 * math.pi)
        return width * math.log(wavelength) / (2 * math.log(theta))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high += 0.001 if low == high else 0
    slowed = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0.0, 1.0)
    return slowed * frequencies / scaling.factor + (1 - slowed) * frequencies
