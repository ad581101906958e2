"""config.json of a Hugging Face folder, in the layouts of transformers 4 and 5, and ModelConfig."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from configs.model_schema import IndexerConfig, LatentConfig, ModelConfig, MoEConfig
from model.hf.errors import HFError
from model.hf.families import FAMILIES, Family
from model.hf.fields import Fields
from model.hf.layer_fields import read_experts, read_layers, write_experts, write_layers
from model.hf.rope_fields import read_rope, write_rope

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embed_dim",
    "num_hidden_layers": "num_layers",
    "intermediate_size": "mlp_dim",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "norm_eps",
}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_SECTIONS = {"latent": LatentConfig, "indexer": IndexerConfig, "moe": MoEConfig}
_OPTIONAL = frozenset(["query_scale", "attention_soft_cap", "logit_soft_cap", "latent.query_rank"])

CARRIED = frozenset(
    ["bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings"]
)  # says nothing about the mathematics, but those who load the folder want it
_NO_EFFECT = CARRIED | frozenset(
    [
        "architectures",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "use_cache",
        "pretraining_tp",
        "_name_or_path",
        "auto_map",
        "is_llama_config",
        "transformers.js_config",
        "cache_implementation",
    ]
)

# Fields that say how a model is run or trained, not what it computes; config.json has none of them.
RUNNING = ("name", "scan_layers", "remat", "param_dtype", "compute_dtype", "init_std")
_TRAINING = ("correction_rate", "balance_loss")


def read_config(values: Mapping[str, Any], name: str = "imported") -> ModelConfig:
    """The model that a config.json describes.

    Raises HFError, naming the key, for a family or a value that is not supported.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise HFError(f"config.json: model_type={model_type!r} is none of {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    fields = Fields(dict(values), family.defaults)
    ours = {field: fields.need(key) for key, field in _SIZES.items()}
    ours |= {"name": name, "family": model_type, **family.parts}
    ours |= _read_own(fields, family)
    ours |= _read_shapes(fields, ours) | read_rope(fields, family)
    ours |= read_layers(fields, family, ours["num_layers"])
    ours |= {"tie_embeddings": bool(fields.take("tie_word_embeddings", False))}
    ours |= {"init_std": fields.take("initializer_range", 0.02)}
    _check_activation(fields, ours.get("activation", "silu"))
    fields.expect("attention_dropout", 0)
    for key, wanted in family.fixed.items():
        fields.expect(key, wanted)
    expert_dim = ours.get("moe.expert_dim", ours["mlp_dim"])
    ours |= read_experts(fields, family, ours.get("moe.num_experts", 0), expert_dim)
    fields.finish(_NO_EFFECT | family.ignored)
    return _build(ours)


def write_config(config: ModelConfig) -> dict[str, Any]:
    """A config.json that transformers 4 and 5 read.

    Raises HFError, naming the field, when the model's family cannot say what the model computes.
    """
    family = FAMILIES[config.family]
    written: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": config.family,
        **{key: _get(config, field) for key, field in _SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": config.init_std,
        **_write_own(config, family),
        **write_rope(config, family),
        **write_layers(config, family),
        **write_experts(config),
        **{key: value for key, value in family.fixed.items() if value not in (None, "noaux_tc")},
    }
    key = "hidden_activation" if config.family.startswith("gemma") else "hidden_act"
    written[key] = "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else "silu"
    if config.latent.kv_rank is None:
        written["head_dim"] = config.head_dim
    _check_same(read_config(written, config.name), config)
    return written


def _read_own(fields: Fields, family: Family) -> dict[str, Any]:
    """The keys of the family's own table; a bias of the attention is one of all projections."""
    values = {
        ours: fields.take(key) if ours in _OPTIONAL else fields.need(key)
        for key, ours in family.fields.items()
    }
    if "attention_bias" in values:
        values["attention_bias"] = "all" if values["attention_bias"] else "none"
    return values


def _write_own(config: ModelConfig, family: Family) -> dict[str, Any]:
    values = {key.split("|")[0]: _get(config, ours) for key, ours in family.fields.items()}
    if "attention_bias" in family.fields:
        values["attention_bias"] = config.attention_bias == "all"
    if (scale := values.get("query_pre_attn_scalar")) is not None:
        values["query_pre_attn_scalar"] = int(scale) if scale == int(scale) else scale
    if "query_pre_attn_scalar" in values and scale is None:
        values["query_pre_attn_scalar"] = config.head_dim
    return values


def _read_shapes(fields: Fields, ours: dict[str, Any]) -> dict[str, Any]:
    """Heads, whose counts and widths may follow from others."""
    heads = ours["num_heads"]
    kv_heads = fields.take("num_key_value_heads", heads)
    if ours.get("latent.kv_rank") is not None:
        width = ours["latent.nope_dim"] + ours["latent.rope_dim"]
    else:
        width = fields.take("head_dim", ours["embed_dim"] // heads)
    return {"num_kv_heads": kv_heads, "head_dim": width}


def _check_activation(fields: Fields, wanted: str) -> None:
    for key in ("hidden_act", "hidden_activation"):
        given = fields.take(key)
        if given is None:
            continue
        found = _ACTIVATIONS.get(given)
        if found != wanted and (wanted, found) != ("clamped_silu", "silu"):
            raise HFError(f"config.json: {key}={given!r} is not supported for this family")


def _build(values: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from fields with dotted names; the rest has the schema's defaults."""
    flat = _numbers(ModelConfig, {key: v for key, v in values.items() if "." not in key})
    for section, kind in _SECTIONS.items():
        own = {k.split(".")[1]: v for k, v in values.items() if k.startswith(f"{section}.")}
        flat[section] = kind(**_numbers(kind, own))
    running = {
        "scan_layers": True,
        "remat": "none",
        "param_dtype": "float32",
        "compute_dtype": "auto",
    }
    return ModelConfig(**{**running, **flat})


def _numbers(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers as floats where the schema wants floats."""
    hints = typing.get_type_hints(kind)
    floats = {name for name, hint in hints.items() if hint in (float, float | None)}
    return {k: float(v) if k in floats and v is not None else v for k, v in values.items()}


def _check_same(read: ModelConfig, wanted: ModelConfig) -> None:
    """Refuses a model that does not come back as it was."""
    same = {name: getattr(wanted, name) for name in RUNNING}
    moe = {name: getattr(wanted.moe, name) for name in _TRAINING}
    same["moe"] = dataclasses.replace(read.moe, **moe)
    same["indexer"] = dataclasses.replace(read.indexer, loss=wanted.indexer.loss)
    read = dataclasses.replace(read, **same)
    differing = [
        f"model.{field.name}={getattr(wanted, field.name)}"
        for field in dataclasses.fields(ModelConfig)
        if meaning(read, field.name) != meaning(wanted, field.name)
    ]
    if differing:
        raise HFError(
            f"the family {wanted.family} has no config.json for {', '.join(differing)}; another "
            "model.family may have one"
        )


def meaning(config: ModelConfig, name: str) -> Any:
    """A field's value, without what nothing reads; None for what does not count."""
    value = getattr(config, name)
    unread = {
        "latent": config.latent.kv_rank is None,
        "indexer": config.indexer.num_heads == 0,
        "moe": config.moe.num_experts == 0,
        "activation_limit": config.activation != "clamped_silu",
        "mlp_dim": config.moe.num_experts > 0 and not config.moe.dense_layers,
    }
    if unread.get(name):
        return None
    if name == "query_scale":
        return value or config.head_dim
    return value


def _get(config: ModelConfig, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value
