"""The families: which parts each is made of, and what its config.json and its tensors are called.

One table entry a family. `parts` are fields of ModelConfig that the family fixes, `fields` maps
keys of config.json to fields of ModelConfig that it leaves open, `names` what its tensors are
called where that differs from
`names.STANDARD`. A new family is a new entry here and its name in
`configs.model_schema.Family`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model.hf.names import (
    GPT_OSS,
    INDEXED,
    LATENT,
    MIXTRAL,
    NORMS_AFTER,
    NORMS_AROUND,
    STANDARD,
    Names,
)


@dataclass(frozen=True)
class Family:
    """A description that import and export read; see the module's text.

    `defaults` are values of keys that config.json leaves out, as transformers has them; `fixed` are
    those it may not change, `ignored` keys without effect. `pattern` says which layers a window is
    for: all ("local"), those from max_window_layers on ("late"), those without rotation ("nope"),
    or a pattern, and all but "local" give way to layer_types; None: there is no window.
    `layer_type`: what layer_types says of every layer, beside which mlp_layer_types may stand.
    `rope_by_layer`: scaling is for global layers; `rope_scaling`: what null stands for.
    """

    architecture: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    pattern: str | None = None
    layer_type: str | None = None
    rope_by_layer: bool = False
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    names: Names = field(default_factory=dict)


_BIAS = {"attention_bias": "attention_bias"}
_NO_BIAS = {"attention_bias": False}
_MLP_BIAS = {"mlp_bias": "mlp_bias"}
_ROUTED = {"num_experts_per_tok": "moe.experts_per_token"}
_GEMMA = {
    "activation": "gelu_tanh",
    "norm_plus_one": True,
    "norm_placement": "both",
    "scale_embeddings": True,
}
_GEMMA_DEFAULTS = {
    **_NO_BIAS,
    "tie_word_embeddings": True,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA_FIELDS = {
    **_BIAS,
    "query_pre_attn_scalar": "query_scale",
    "final_logit_softcapping": "logit_soft_cap",
}
_DEEPSEEK_FIELDS = {
    **_BIAS,
    **_ROUTED,
    "n_routed_experts": "moe.num_experts",
    "moe_intermediate_size": "moe.expert_dim",
    "routed_scaling_factor": "moe.weight_scale",
    "first_k_dense_replace": "moe.dense_layers",
    "kv_lora_rank": "latent.kv_rank",
    "q_lora_rank": "latent.query_rank",
    "qk_nope_head_dim": "latent.nope_dim",
    "qk_rope_head_dim": "latent.rope_dim",
    "v_head_dim": "latent.value_dim",
}
_DEEPSEEK_DEFAULTS = {**_NO_BIAS, "q_lora_rank": 1536}
_DEEPSEEK_IGNORED = frozenset(
    ["head_dim", "qk_head_dim", "ep_size", "num_nextn_predict_layers", "aux_loss_alpha", "seq_aux"]
)
_DEEPSEEK_V3_PARTS = {
    "moe.scoring": "sigmoid",
    "moe.group_score": "top2_sum",
    "moe.correction_bias": True,
}
_DEEPSEEK_V3_FIXED = {"scoring_func": "sigmoid", "moe_layer_freq": 1, "topk_method": "noaux_tc"}
_NO_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM",
        fields={**_BIAS, **_MLP_BIAS},
        defaults={**_NO_BIAS, "mlp_bias": False},
    ),
    "mistral": Family(
        "MistralForCausalLM",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
        pattern="local",
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        parts={"attention_bias": "qkv"},
        defaults={**_NO_WINDOW, "num_key_value_heads": 32},
        pattern="late",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        parts={"qk_norm": "head"},
        fields=_BIAS,
        defaults={**_NO_BIAS, **_NO_WINDOW, "num_key_value_heads": 32, "head_dim": 128},
        pattern="late",
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        parts={"qk_norm": "head"},
        fields={
            **_BIAS,
            **_ROUTED,
            "num_experts|num_local_experts": "moe.num_experts",
            "moe_intermediate_size": "moe.expert_dim",
            "norm_topk_prob": "moe.normalize",
        },
        defaults={**_NO_BIAS, **_NO_WINDOW, "num_key_value_heads": 4, "norm_topk_prob": False},
        fixed={"decoder_sparse_step": 1},
        ignored=frozenset({"max_window_layers"}),
        pattern="local",
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        parts=_GEMMA,
        fields={**_GEMMA_FIELDS, "attn_logit_softcapping": "attention_soft_cap"},
        defaults={
            **_GEMMA_DEFAULTS,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        fixed={"use_bidirectional_attention": False},
        pattern="local,global",
        names=NORMS_AROUND,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        parts={**_GEMMA, "qk_norm": "head"},
        fields=_GEMMA_FIELDS,
        defaults={
            **_GEMMA_DEFAULTS,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
        },
        fixed={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
        ignored=frozenset({"_sliding_window_pattern"}),
        pattern="local*5,global",
        names=NORMS_AROUND,
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        fields={**_ROUTED, "num_local_experts": "moe.num_experts"},
        defaults={"num_key_value_heads": 8, "rope_theta": 1e6},
        fixed={"router_jitter_noise": 0.0},
        pattern="local",
        names=MIXTRAL,
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        parts={"qk_norm": "all", "norm_placement": "post"},
        fields=_BIAS,
        defaults=_NO_BIAS,
        names=NORMS_AFTER,
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        parts={"qk_norm": "all", "norm_placement": "post"},
        fields=_BIAS,
        defaults={**_NO_BIAS, "sliding_window": 4096, "rope_theta": 500000.0},
        pattern="local*3,global",
        rope_by_layer=True,
        names=NORMS_AFTER,
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        fields={**_BIAS, **_MLP_BIAS},
        defaults={
            **_NO_BIAS,
            "mlp_bias": False,
            "use_sliding_window": False,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
        },
        ignored=frozenset({"max_window_layers"}),
        pattern="nope",
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        parts={
            "sinks": True,
            "activation": "clamped_silu",
            "mlp_bias": True,
            "moe.router_bias": True,
        },
        fields={
            **_BIAS,
            **_ROUTED,
            "num_local_experts": "moe.num_experts",
            "swiglu_limit": "activation_limit",
        },
        defaults={
            "attention_bias": True,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "rope_theta": 150000.0,
        },
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        fixed={"swiglu_alpha": 1.702},
        ignored=frozenset({"experts_per_token", "initial_context_length"}),
        pattern="local,global",
        names=GPT_OSS,
    ),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        parts={"rope_interleaved": True, "moe.normalize": False},
        fields=_DEEPSEEK_FIELDS,
        defaults={**_DEEPSEEK_DEFAULTS, "topk_method": "greedy"},
        fixed={
            "norm_topk_prob": False,
            "mlp_bias": False,
            "scoring_func": "softmax",
            "moe_layer_freq": 1,
        },
        ignored=_DEEPSEEK_IGNORED,
        names=LATENT,
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        parts=_DEEPSEEK_V3_PARTS,
        fields={
            **_DEEPSEEK_FIELDS,
            "norm_topk_prob": "moe.normalize",
            "rope_interleave": "rope_interleaved",
        },
        defaults={**_DEEPSEEK_DEFAULTS, "rope_interleave": True, "norm_topk_prob": True},
        fixed=_DEEPSEEK_V3_FIXED,
        ignored=_DEEPSEEK_IGNORED,
        names=LATENT,
    ),
    "deepseek_v32": Family(
        "DeepseekV32ForCausalLM",
        parts={**_DEEPSEEK_V3_PARTS, "rope_interleaved": True},
        fields={
            **_DEEPSEEK_FIELDS,
            "norm_topk_prob": "moe.normalize",
            "index_n_heads": "indexer.num_heads",
            "index_head_dim": "indexer.head_dim",
            "index_topk": "indexer.top_k",
        },
        defaults={
            **_DEEPSEEK_DEFAULTS,
            "norm_topk_prob": True,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 2048,
        },
        fixed={**_DEEPSEEK_V3_FIXED, "mlp_bias": False},
        ignored=_DEEPSEEK_IGNORED,
        layer_type="indexed_attention",
        names=INDEXED,
    ),
}


def names_of(family: str) -> dict[str, tuple[str, str]]:
    """All tensor names of a family by parameter path."""
    return {**STANDARD, **FAMILIES[family].names}
