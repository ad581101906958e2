"""From a config to a declared model."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from configs.model_schema import ModelConfig
from configs.schema import AdapterConfig
from model.placement import Placement
from model.transformer import Transformer


def build_model(
    config: ModelConfig,
    placement: Placement | None = None,
    platform: str | None = None,
    adapter: AdapterConfig | None = None,
) -> Transformer:
    """Declares the model of a config; allocates nothing.

    `platform` ("cpu", "gpu", "tpu") decides compute_dtype=auto; by default it is the default
    backend's, which starts it. With an adapter, all but its factors is frozen.
    """
    dtype = compute_dtype(config, platform)
    return Transformer(config, placement or Placement(), dtype, adapter)


def compute_dtype(config: ModelConfig, platform: str | None = None) -> jnp.dtype:
    """The dtype of activations: as configured, or by platform when it says auto."""
    if config.compute_dtype != "auto":
        return jnp.dtype(config.compute_dtype)
    platform = platform or jax.default_backend()
    return jnp.dtype(jnp.float32 if platform == "cpu" else jnp.bfloat16)
