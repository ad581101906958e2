"""Adapters as Hugging Face PEFT has them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.model_schema import ModelConfig
from configs.schema import AdapterConfig
from model.hf.save import tensors_of, write_safetensors

_PREFIX = "base_model.model."
_OF_EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")  # as transformers 5 has them


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
    modules, parameters = _targets(named, has_experts=config.moe.num_experts > 0)
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
        "target_parameters": parameters or None,
    }
    (path / "adapter_config.json").write_text(json.dumps(written, indent=2) + "\n")


def _targets(names: Iterable[str], has_experts: bool) -> tuple[list[str], list[str]]:
    """What PEFT is to put factors on: modules by their last name, and parameters.

    In models with experts PEFT takes `gate_proj`, `up_proj` and `down_proj` for experts of
    transformers 4, so that dense layers and shared experts have to be named as parameters.
    """
    modules: set[str] = set()
    parameters: set[str] = set()
    for name in names:
        path = name.partition(".lora_")[0]
        _, _, in_mlp = path.partition(".mlp.")
        if in_mlp.startswith("experts"):
            parameters.update(_OF_EXPERTS)
        elif in_mlp and has_experts:
            parameters.add(f"mlp.{in_mlp}.weight")
        else:
            modules.add(path.rpartition(".")[2])
    return sorted(modules), sorted(parameters)
