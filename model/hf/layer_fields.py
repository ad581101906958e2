"""Which layers see a window, rotate, or have experts, as the families' config.json files say it."""

from __future__ import annotations

from typing import Any

from configs.layer_pattern import parse_pattern, write_pattern
from configs.model_schema import ModelConfig
from model.hf.errors import HFError
from model.hf.families import Family
from model.hf.fields import Fields

_TYPES = {"full_attention": "global", "sliding_attention": "local"}


def read_layers(fields: Fields, family: Family, num_layers: int) -> dict[str, Any]:
    """The fields layer_pattern and window of ModelConfig."""
    rotates, window = _rotates(fields, family, num_layers), _window(fields, family)
    kinds = _by_type(fields, family, num_layers)
    rule = _by_rule(fields, family, rotates)
    if kinds is None:
        kinds = ["global"] * num_layers if window is None else rule
    if "local" in kinds and window is None:
        raise HFError("config.json: layer_types has sliding_attention, but sliding_window is null")
    kinds = [k if rotated else f"{k}_nope" for k, rotated in zip(kinds, rotates, strict=True)]
    used = any(kind.startswith("local") for kind in kinds)
    return {"layer_pattern": write_pattern(tuple(kinds)), "window": window if used else None}


def write_layers(config: ModelConfig, family: Family) -> dict[str, Any]:
    """The keys of config.json that give these layers."""
    pattern, count = parse_pattern(config.layer_pattern), config.num_layers
    kinds = [pattern[i % len(pattern)] for i in range(count)]
    names = {ours: theirs for theirs, ours in _TYPES.items()}
    types = [names[kind.removesuffix("_nope")] for kind in kinds]
    written: dict[str, Any] = {}
    if family.pattern is not None:
        written["sliding_window"] = config.window
    if "use_sliding_window" in family.defaults:
        written["use_sliding_window"] = config.window is not None
    if family.pattern == "late":
        local = "sliding_attention"
        written["max_window_layers"] = types.index(local) if local in types else count
    if _has_types(family):
        written["layer_types"] = types
    if "no_rope_layer_interval" in family.defaults:
        written["no_rope_layers"] = [int(not kind.endswith("_nope")) for kind in kinds]
    return written


def _window(fields: Fields, family: Family) -> int | None:
    if family.pattern is None:
        return None
    window = fields.take("sliding_window")
    if "use_sliding_window" in family.defaults and not fields.take("use_sliding_window"):
        return None
    return window


def _has_types(family: Family) -> bool:
    return family.pattern not in (None, "local")


def _by_type(fields: Fields, family: Family, num_layers: int) -> list[str] | None:
    if family.layer_type is not None:
        fields.expect("layer_types", [family.layer_type] * num_layers)
    types = fields.take("layer_types") if _has_types(family) else None
    if types is None:
        return None
    unknown = sorted({str(t) for t in types} - _TYPES.keys())
    if unknown or len(types) != num_layers:
        raise HFError(
            f"config.json: layer_types: {', '.join(unknown) or len(types)}; it takes "
            f"{num_layers} of {', '.join(_TYPES)}"
        )
    return [_TYPES[t] for t in types]


def _by_rule(fields: Fields, family: Family, rotates: list[bool]) -> list[str]:
    """What transformers makes of a window without layer_types."""
    if family.pattern is None:
        is_local = [False for _ in rotates]
    elif family.pattern == "late":
        first = fields.take("max_window_layers", 0)
        is_local = [number >= first for number in range(len(rotates))]
    elif family.pattern == "nope":
        is_local = [not rotated for rotated in rotates]
    else:
        pattern = parse_pattern(family.pattern)
        if (every := family.defaults.get("sliding_window_pattern")) is not None:
            every = fields.take("sliding_window_pattern", every)
            pattern = ("local",) * (every - 1) + ("global",)
        is_local = [pattern[i % len(pattern)] == "local" for i in range(len(rotates))]
    return ["local" if local else "global" for local in is_local]


def _rotates(fields: Fields, family: Family, num_layers: int) -> list[bool]:
    if "no_rope_layer_interval" not in family.defaults:
        return [True] * num_layers
    given, interval = fields.take("no_rope_layers"), fields.take("no_rope_layer_interval")
    if given is None:
        return [(i + 1) % interval != 0 for i in range(num_layers)]
    if len(given) != num_layers:
        raise HFError(f"config.json: no_rope_layers has {len(given)} entries, not {num_layers}")
    return [bool(rotated) for rotated in given]


def read_experts(
    fields: Fields, family: Family, num_experts: int, expert_dim: int
) -> dict[str, Any]:
    """The fields of ModelConfig.moe that have no key of their own in every family."""
    if num_experts == 0:
        return {}
    values: dict[str, Any] = {"moe.expert_dim": expert_dim}
    if "n_routed_experts" in family.fields:
        values["moe.shared_dim"] = fields.need("n_shared_experts") * expert_dim
        return values | _read_groups(fields, family) | _read_dense(fields, family)
    dense = fields.take("mlp_only_layers") if "decoder_sparse_step" in family.fixed else None
    if dense:
        if sorted(dense) != list(range(len(dense))):
            raise HFError(f"config.json: mlp_only_layers={dense}: only the first ones can be dense")
        values["moe.dense_layers"] = len(dense)
    factor = fields.take("router_aux_loss_coef", 0.0)
    values["moe.balance_loss"] = factor if fields.take("output_router_logits") else 0.0
    return values


def _read_dense(fields: Fields, family: Family) -> dict[str, Any]:
    """The dense layers as mlp_layer_types has them, which goes before first_k_dense_replace."""
    types = fields.take("mlp_layer_types") if family.layer_type is not None else None
    if types is None:
        return {}
    dense = types.index("sparse") if "sparse" in types else len(types)
    wanted = ["dense"] * dense + ["sparse"] * (fields.need("num_hidden_layers") - dense)
    if types != wanted:
        raise HFError(f"config.json: mlp_layer_types={types}: some dense, then sparse to the end")
    return {"moe.dense_layers": dense}


def _read_groups(fields: Fields, family: Family) -> dict[str, Any]:
    """Groups of experts, of which a token goes to a few; DeepSeek-V2 may have none."""
    groups, kept = fields.take("n_group"), fields.take("topk_group")
    if "topk_method" not in family.fixed:
        method = fields.take("topk_method")
        if method not in ("greedy", "group_limited_greedy"):
            raise HFError(f"config.json: topk_method={method!r} is not supported")
        if method == "greedy":
            return {}
    if groups is None or kept is None:
        raise HFError("config.json: n_group or topk_group is missing")
    return {"moe.num_groups": groups, "moe.top_groups": kept}


def write_experts(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read_experts`."""
    moe, family = config.moe, config.family
    if moe.num_experts == 0:
        return {}
    if family.startswith("deepseek"):
        written: dict[str, Any] = {"n_shared_experts": moe.shared_dim // moe.expert_dim}
        written |= {"n_group": moe.num_groups, "topk_group": moe.top_groups}
        if family == "deepseek_v2":
            greedy = moe.num_groups == 1
            written["topk_method"] = "greedy" if greedy else "group_limited_greedy"
        return written
    written = {"router_aux_loss_coef": moe.balance_loss or 0.001}
    written["output_router_logits"] = moe.balance_loss > 0
    if moe.dense_layers:
        written["mlp_only_layers"] = list(range(moe.dense_layers))
    return written
