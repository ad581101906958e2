"""Rotary embeddings in config.json: rope_theta and rope_scaling (v4), or rope_parameters (v5)."""

from __future__ import annotations

from typing import Any

from configs.model_schema import ModelConfig, RopeScalingConfig
from model.hf.errors import HFError
from model.hf.families import Family
from model.hf.fields import Fields

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
    """The fields rope_theta, rope_scaling and rope_local_theta of ModelConfig.

    Raises HFError, naming the key, for a scaling that is not supported, and where the keys of
    transformers 4 and those of 5 are there and differ.
    """
    fields.expect("partial_rotary_factor", 1)
    parameters = fields.take("rope_parameters")
    older = _read_older(fields, family, is_whole=parameters is None)
    if parameters is None:
        return older
    if _is_by_layer(family):
        newer = _read_by_layer(parameters, family)
    else:
        newer = _read_flat(dict(parameters), family)
    if fields.take("rope_scaling") and older != newer:
        raise HFError("config.json: rope_scaling and rope_parameters differ; either one will do")
    return newer


def _is_by_layer(family: Family) -> bool:
    """Whether rope_parameters has an entry for each kind of layer."""
    return family.rope_by_layer or "rope_local_base_freq" in family.defaults


def _read_older(fields: Fields, family: Family, is_whole: bool) -> dict[str, Any]:
    """rope_theta and rope_scaling."""
    theta, local = fields.take("rope_theta", 10000.0), fields.take("rope_local_base_freq")
    given = fields.take("rope_scaling") or family.rope_scaling
    if not family.rope_by_layer:
        return _read_flat({"rope_theta": theta, **given}, family, local)
    if is_whole and theta != family.defaults["rope_theta"]:
        raise HFError(
            f"config.json: rope_theta={theta} is read in two ways for this family; "
            "rope_parameters, with full_attention and sliding_attention, says which"
        )
    return _read_flat({"rope_theta": theta, **given}, family, theta)


def _read_flat(
    values: dict[str, Any], family: Family, local: float | None = None
) -> dict[str, Any]:
    """Theta and scaling of global layers; `local` is the theta of the others, if they differ."""
    theta = values.pop("rope_theta", family.defaults.get("rope_theta", 10000.0))
    if _is_by_layer(family) and ("type" in values or not values.get("truncate", True)):
        raise HFError(
            f"config.json: rope_scaling={values}: transformers 5 reads neither type, in place of "
            "rope_type, nor truncate for this family"
        )
    scaling = _read_scaling(values)
    if local == theta and scaling.type == "none":
        local = None
    return {
        "rope_theta": float(theta),
        "rope_scaling": scaling,
        "rope_local_theta": None if local is None else float(local),
    }


def _read_by_layer(parameters: dict[str, Any], family: Family) -> dict[str, Any]:
    """rope_parameters with an entry for each kind of layer, as some families have it."""
    unknown = parameters.keys() - {"full_attention", "sliding_attention"}
    if unknown:
        raise HFError(
            f"config.json: rope_parameters: {', '.join(sorted(unknown))}: this family has "
            "full_attention and sliding_attention there"
        )
    thetas = family.defaults
    default = thetas.get("rope_local_base_freq", thetas["rope_theta"])
    sliding = dict(parameters.get("sliding_attention") or {})
    local = sliding.pop("rope_theta", default)
    if _read_scaling(sliding).type != "none":
        raise HFError(f"config.json: rope_parameters.sliding_attention={sliding}: scaled")
    return _read_flat(dict(parameters.get("full_attention") or {}), family, local)


def write_rope(config: ModelConfig, family: Family) -> dict[str, Any]:
    """The keys of config.json, in the layout that transformers 4 and 5 read."""
    kind, scaling = config.rope_scaling.type, None
    if kind != "none":
        scaling = {"rope_type": kind, **_written_scaling(config.rope_scaling)}
    written = {"rope_theta": config.rope_theta, "rope_scaling": scaling}
    local = config.rope_local_theta
    if family.rope_scaling and scaling is None:
        written["rope_scaling"] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if "rope_local_base_freq" in family.defaults:
        return {**written, "rope_local_base_freq": config.rope_theta if local is None else local}
    if not family.rope_by_layer:
        return written
    full = {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})}
    sliding = {"rope_theta": local or config.rope_theta, "rope_type": "default"}
    by_layer = {"full_attention": full, "sliding_attention": sliding}
    return {**written, "rope_parameters": by_layer}


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
