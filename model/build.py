"""From a config to a declared model."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from configs.schema import ModelConfig
from model.placement import Placement
from model.transformer import Transformer


def build_model(
    config: ModelConfig, placement: Placement | None = None, platform: str | None = None
) -> Transformer:
    """Declares the model of a config; allocates nothing.

    `platform` ("cpu", "gpu", "tpu") decides compute_dtype=auto; by default it is the default
    backend's, which starts it.
    """
    return Transformer(config, placement or Placement(), compute_dtype(config, platform))


def compute_dtype(config: ModelConfig, platform: str | None = None) -> jnp.dtype:
    """The dtype of activations: as configured, or by platform when it says auto."""
    if config.compute_dtype != "auto":
        return jnp.dtype(config.compute_dtype)
    platform = platform or jax.default_backend()
    return jnp.dtype(jnp.float32 if platform == "cpu" else jnp.bfloat16)
