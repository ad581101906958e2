"""Adapters as Hugging Face PEFT has them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.schema import AdapterConfig, ModelConfig
from model.hf.save import tensors_of, write_safetensors

_PREFIX = "base_model.model."


def save_peft(
    config: ModelConfig,
    adapter: AdapterConfig,
    factors: tuple[Any, Any],
    path: str | Path,
    base: str | None,
) -> None:
    """Writes the factors, given as (specs, arrays) trees with None elsewhere, for PEFT to load."""
    path = Path(path)
    named = dict(tensors_of(config, *factors))
    tensors = {f"{_PREFIX}{name}": np.ascontiguousarray(x) for name, x in named.items()}
    if jax.process_index() != 0:
        return
    path.mkdir(parents=True, exist_ok=True)
    write_safetensors(tensors, path / "adapter_model.safetensors")
    modules = sorted({name.rsplit(".", 3)[1] for name in named})
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": modules,
    }
    (path / "adapter_config.json").write_text(json.dumps(written, indent=2) + "\n")
