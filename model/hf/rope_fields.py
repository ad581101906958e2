"""Rotary embeddings in config.json: rope_theta and rope_scaling (v4), or rope_parameters (v5)."""

from __future__ import annotations

from typing import Any

from configs.schema import ModelConfig, RopeScalingConfig
from model.hf.errors import Fields, HFError
from model.hf.families import Family

# Their key -> ours, of each type; the first ones are needed.
_COMMON = {"factor": "factor", "original_max_position_embeddings": "original_seq_len"}
_LENGTH = "original_seq_len"
_KEYS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        **_COMMON,
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "yarn": {
        **_COMMON,
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "truncate": "truncate",
        "attention_factor": "attention_factor",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
    },
}


def read_rope(fields: Fields, family: Family) -> dict[str, Any]:
    """The fields rope_theta, rope_scaling and rope_local_theta of ModelConfig."""
    theta, local = fields.take("rope_theta", 10000.0), fields.take("rope_local_base_freq")
    scaling = dict(fields.take("rope_scaling") or {})
    parameters = dict(fields.take("rope_parameters") or {})
    by_layer = {"full_attention", "sliding_attention"} & parameters.keys()
    if by_layer:
        if "sliding_attention" in parameters:
            local = _theta_of_unscaled(parameters.pop("sliding_attention"), local or theta)
        parameters = dict(parameters.pop("full_attention", {}))
    if parameters:
        theta, scaling = parameters.pop("rope_theta", theta), parameters
    read = _read_scaling(scaling)
    if family.rope_by_layer and local is None:
        local = theta
    if local == theta and read.type == "none":
        local = None
    return {
        "rope_theta": float(theta),
        "rope_scaling": read,
        "rope_local_theta": None if local is None else float(local),
    }


def write_rope(config: ModelConfig, family: Family) -> dict[str, Any]:
    """The keys of config.json, in the layout that transformers 4 and 5 read."""
    kind, scaling = config.rope_scaling.type, None
    if kind != "none":
        scaling = {"rope_type": kind, **_written_scaling(config.rope_scaling)}
    written = {"rope_theta": config.rope_theta, "rope_scaling": scaling}
    local = config.rope_local_theta
    if "rope_local_base_freq" in family.defaults:
        return {**written, "rope_local_base_freq": config.rope_theta if local is None else local}
    if not family.rope_by_layer:
        return written
    full = {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})}
    sliding = {"rope_theta": local or config.rope_theta, "rope_type": "default"}
    by_layer = {"full_attention": full, "sliding_attention": sliding}
    return {**written, "rope_parameters": by_layer}


def _theta_of_unscaled(parameters: dict[str, Any], default: float) -> float:
    rest = {k: v for k, v in parameters.items() if k != "rope_theta"}
    if _read_scaling(rest).type != "none":
        raise HFError(f"config.json: rope_parameters.sliding_attention={parameters}: scaled")
    return parameters.get("rope_theta", default)


def _read_scaling(given: dict[str, Any]) -> RopeScalingConfig:
    left = {key: value for key, value in given.items() if value is not None}
    kind = left.pop("rope_type", left.pop("type", "default"))
    left.pop("type", None)
    if left.get("partial_rotary_factor") == 1:
        del left["partial_rotary_factor"]
    if kind not in _KEYS:
        raise HFError(f"config.json: rope_type={kind!r} is not one of {', '.join(_KEYS)}")
    needed = [key for key in list(_KEYS[kind])[:2] if key not in left]
    if needed:
        raise HFError(f"config.json: rope_scaling of type {kind} lacks {', '.join(needed)}")
    values = {ours: left.pop(key) for key, ours in _KEYS[kind].items() if key in left}
    if left:
        raise HFError(f"config.json: rope_scaling: {left} is not known for type {kind}")
    values = {k: float(v) if type(v) is int and k != _LENGTH else v for k, v in values.items()}
    return RopeScalingConfig(type="none" if kind == "default" else kind, **values)


def _written_scaling(scaling: RopeScalingConfig) -> dict[str, Any]:
    values = {key: getattr(scaling, ours) for key, ours in _KEYS[scaling.type].items()}
    return {key: value for key, value in values.items() if value is not None}
