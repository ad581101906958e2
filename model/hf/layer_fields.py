"""Which layers see a window, rotate, or have experts, as the families' config.json files say it."""

from __future__ import annotations

from typing import Any

from configs.layer_pattern import parse_pattern, write_pattern
from configs.schema import ModelConfig
from model.hf.errors import Fields, HFError
from model.hf.families import Family

_TYPES = {"full_attention": "global", "sliding_attention": "local"}


def read_layers(fields: Fields, family: Family, num_layers: int) -> dict[str, Any]:
    """The fields layer_pattern and window of ModelConfig."""
    window = fields.take("sliding_window")
    if not fields.take("use_sliding_window", True):
        window = None
    kinds = _by_type(fields, num_layers) or _by_default(fields, family, window, num_layers)
    for key in ("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern"):
        fields.take(key)
    if "local" in kinds and window is None:
        raise HFError("config.json: layer_types has sliding_attention, but sliding_window is null")
    kinds = [
        kind if rotates else f"{kind}_nope"
        for kind, rotates in zip(kinds, _rotates(fields, num_layers), strict=True)
    ]
    used = any(kind.startswith("local") for kind in kinds)
    return {"layer_pattern": write_pattern(tuple(kinds)), "window": window if used else None}


def write_layers(config: ModelConfig, family: Family) -> dict[str, Any]:
    """The keys of config.json that give these layers."""
    pattern, count = parse_pattern(config.layer_pattern), config.num_layers
    kinds = [pattern[i % len(pattern)] for i in range(count)]
    names = {ours: theirs for theirs, ours in _TYPES.items()}
    types = [names[kind.removesuffix("_nope")] for kind in kinds]
    written: dict[str, Any] = {"sliding_window": config.window}
    if "use_sliding_window" in family.defaults:
        written["use_sliding_window"] = config.window is not None
        written["max_window_layers"] = types.index(_FIRST_LOCAL) if _FIRST_LOCAL in types else count
    if len(set(types)) > 1 or family.pattern is not None:
        written["layer_types"] = types
    if "no_rope_layer_interval" in family.defaults:
        written["no_rope_layers"] = [int(not kind.endswith("_nope")) for kind in kinds]
    return {key: value for key, value in written.items() if value is not None}


_FIRST_LOCAL = "sliding_attention"


def _by_type(fields: Fields, num_layers: int) -> list[str] | None:
    types = fields.take("layer_types")
    if types is None:
        return None
    unknown = sorted({str(t) for t in types} - _TYPES.keys())
    if unknown or len(types) != num_layers:
        raise HFError(
            f"config.json: layer_types: {', '.join(unknown) or len(types)}; it takes "
            f"{num_layers} of {', '.join(_TYPES)}"
        )
    return [_TYPES[t] for t in types]


def _by_default(fields: Fields, family: Family, window: int | None, num_layers: int) -> list[str]:
    """What transformers makes of a window without layer_types."""
    if window is None:
        return ["global"] * num_layers
    if family.pattern is not None:
        pattern = parse_pattern(family.pattern)
        every = fields.take("sliding_window_pattern") or fields.take("_sliding_window_pattern")
        if every is not None:
            pattern = ("local",) * (every - 1) + ("global",)
        return [pattern[i % len(pattern)] for i in range(num_layers)]
    first = 0
    if "max_window_layers" not in family.ignored:
        first = fields.take("max_window_layers", 0)
    return ["local" if i >= first else "global" for i in range(num_layers)]


def _rotates(fields: Fields, num_layers: int) -> list[bool]:
    given, interval = fields.take("no_rope_layers"), fields.take("no_rope_layer_interval")
    if given:
        return [bool(rotates) for rotates in given]
    if interval is None:
        return [True] * num_layers
    return [(i + 1) % interval != 0 for i in range(num_layers)]


def read_experts(fields: Fields, num_experts: int, expert_dim: int) -> dict[str, Any]:
    """The fields of ModelConfig.moe that have no key of their own in every family."""
    if num_experts == 0:
        return {}
    values: dict[str, Any] = {"moe.expert_dim": expert_dim}
    if (shared := fields.take("n_shared_experts")) is not None:
        values["moe.shared_dim"] = shared * expert_dim
    dense = fields.take("mlp_only_layers")
    if dense:
        if sorted(dense) != list(range(len(dense))):
            raise HFError(f"config.json: mlp_only_layers={dense}: only the first ones can be dense")
        values["moe.dense_layers"] = len(dense)
    groups, method = fields.take("n_group", 1), fields.take("topk_method", "noaux_tc")
    kept = fields.take("topk_group", 1)
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise HFError(f"config.json: topk_method={method!r} is not supported")
    if method != "greedy":
        values |= {"moe.num_groups": groups, "moe.top_groups": kept}
    factor = fields.take("router_aux_loss_coef", 0.0)
    values["moe.balance_loss"] = factor if fields.take("output_router_logits") else 0.0
    return values


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
