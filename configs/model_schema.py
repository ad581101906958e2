"""The keys of a model: its sizes and parts. configs/model/*.yaml gives them values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from configs.keys import key

Family = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "olmo2",
    "olmo3",
    "smollm3",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
]


@dataclass(frozen=True, kw_only=True)
class RopeScalingConfig:
    """Frequency scaling of rotary embeddings for contexts longer than the pretraining length."""

    type: Literal["none", "linear", "llama3", "yarn"] = key(
        "none, linear, llama3 (by frequency band) or yarn (arXiv 2309.00071)."
    )
    factor: float = key("How many times longer the context may be than the original.", 1.0)
    original_seq_len: int = key("Sequence length of the pretraining, in tokens.", 8192)
    low_freq_factor: float = key("llama3: wavelengths above original/low are scaled fully.", 1.0)
    high_freq_factor: float = key("llama3: wavelengths below original/high are kept.", 4.0)
    beta_fast: float = key("yarn: pairs with more turns than this are kept.", 32.0)
    beta_slow: float = key("yarn: pairs with fewer turns than this are scaled fully.", 1.0)
    truncate: bool = key("yarn: round the two borders between pairs to whole pairs.", True)
    attention_factor: float | None = key(
        "yarn: multiplies queries and keys; null takes 0.1 ln(factor) + 1, or what mscale says.",
        None,
    )
    mscale: float | None = key("yarn as DeepSeek has it: numerator of the factor.", None)
    mscale_all_dim: float | None = key(
        "yarn as DeepSeek has it: denominator of the factor; it scales the scores as well.", None
    )


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Latent attention: keys and values come from one narrow latent (arXiv 2405.04434)."""

    kv_rank: int | None = key("Width of the key/value latent; null is ordinary attention.", None)
    query_rank: int | None = key("Width of the query latent; null projects queries directly.", None)
    nope_dim: int = key("Width of the part of a query or key head without rotary positions.", 128)
    rope_dim: int = key("Width of the part with rotary positions, which all key heads share.", 64)
    value_dim: int = key("Width of a value head.", 128)


@dataclass(frozen=True, kw_only=True)
class IndexerConfig:
    """Sparse attention (arXiv 2512.02556): light heads choose the keys that a query attends to."""

    num_heads: int = key("Heads that score keys; 0 has no indexer: every key is attended to.", 0)
    head_dim: int = key("Width of such a head; its first latent.rope_dim are rotated.", 128)
    top_k: int = key("Keys that a query attends to.", 2048)
    loss: float = key(
        "Factor of the loss that teaches the indexer what attention attends to among the chosen "
        "keys; 0 leaves the indexer as it is.",
        0.0,
    )


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Mixture of experts in place of the feed-forward layer; every token is served (dropless)."""

    num_experts: int = key("Routed experts E; 0 has dense layers only.", 0)
    experts_per_token: int = key("Experts that each token goes to.", 2)
    expert_dim: int = key("Width of one expert.", 0)
    shared_dim: int = key("Width of the experts that see every token, all together; 0: none.", 0)
    dense_layers: int = key("How many of the first layers keep a dense feed-forward layer.", 0)
    scoring: Literal["softmax", "sigmoid"] = key("How router logits become scores.", "softmax")
    normalize: bool = key("Divide a token's weights by their sum.", True)
    weight_scale: float = key("Multiplies the weights after that.", 1.0)
    num_groups: int = key("Groups of experts among which a token first chooses; 1: no groups.", 1)
    top_groups: int = key("Groups that a token keeps.", 1)
    group_score: Literal["max", "top2_sum"] = key("What stands for a group in that choice.", "max")
    router_bias: bool = key("Add a bias to the router's logits.", False)
    correction_bias: bool = key(
        "Add a bias to the scores when experts are chosen, not to the weights (DeepSeek-V3).", False
    )
    correction_rate: float = key(
        "How far a step moves the correction bias of an expert towards an even load.", 0.0
    )
    balance_loss: float = key(
        "Factor of the load-balance loss (E times the sum over experts of load times mean "
        "probability, arXiv 2101.03961) that is added to the training loss.",
        0.0,
    )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    name: str = key("Which model this is; for logs and tables.")
    family: Family = key(
        "Whose parameter names and config.json a Hugging Face folder has: that of export.", "llama"
    )
    vocab_size: int = key("Rows of the embedding table.")
    num_layers: int = key("Decoder layers.")
    embed_dim: int = key("Width D of the residual stream.")
    mlp_dim: int = key("Width F of the dense feed-forward layer.")
    num_heads: int = key("Query heads N.")
    num_kv_heads: int = key("Key/value heads K; divides num_heads (GQA), 1 is MQA.")
    head_dim: int = key("Width H of a query or key head; need not be embed_dim / num_heads.")
    layer_pattern: str = key(
        "Kinds of attention layers, repeated over the depth: global, local (sees model.window "
        "tokens), global_nope, local_nope (without rotary positions). local*5,global is five local "
        "layers, then a global one.",
        "global",
    )
    window: int | None = key("Tokens that a local layer sees, the token itself included.", None)
    rope_theta: float = key("Base of the rotary frequencies.")
    rope_local_theta: float | None = key(
        "Base of the rotary frequencies in local layers, unscaled; null treats all layers alike.",
        None,
    )
    rope_interleaved: bool = key("Rotate pairs of neighbours (2i, 2i+1), not of halves.", False)
    rope_scaling: RopeScalingConfig = key("Scaling of the rotary frequencies.")
    latent: LatentConfig = key("Multi-head latent attention.", LatentConfig())
    indexer: IndexerConfig = key("Sparse attention, over latents.", IndexerConfig())
    attention_bias: Literal["none", "qkv", "all"] = key(
        "Projections of the attention that add a bias; all includes the output's.", "none"
    )
    qk_norm: Literal["none", "head", "all"] = key(
        "Normalise queries and keys before rotation: over each head, or over all heads at once.",
        "none",
    )
    sinks: bool = key("A learned score per head joins the softmax and has no value.", False)
    query_scale: float | None = key(
        "Scores are divided by the square root of this; null takes the head's width.", None
    )
    attention_soft_cap: float | None = key("Scores x become cap * tanh(x / cap).", None)
    logit_soft_cap: float | None = key("Logits x become cap * tanh(x / cap).", None)
    activation: Literal["silu", "gelu_tanh", "clamped_silu"] = key(
        "Gate of the feed-forward layer; clamped_silu is that of gpt-oss.", "silu"
    )
    activation_limit: float = key("clamped_silu: gate and up are cut off at this.", 7.0)
    mlp_bias: bool = key("Projections of the feed-forward layer and of experts add a bias.", False)
    moe: MoEConfig = key("Mixture of experts.", MoEConfig())
    norm_eps: float = key("Epsilon inside RMSNorm.")
    norm_plus_one: bool = key("RMSNorm multiplies by 1 + scale, and scale starts at 0.", False)
    norm_placement: Literal["pre", "post", "both"] = key(
        "Where a sublayer is normalised: its input, its output, or both.", "pre"
    )
    scale_embeddings: bool = key("Multiply embeddings by sqrt(embed_dim).", False)
    tie_embeddings: bool = key("Use the embedding table as the output head as well.")
    init_std: float = key("Standard deviation of the truncated normal that draws matrices.")
    scan_layers: bool = key("Scan over layers (compile time flat in depth) or unroll; same values.")
    remat: str = key(
        "What the backward pass recomputes: none (keeps all), dots (keeps matrix products and "
        "attention, which no one pays twice), full (keeps layer inputs), or comma-separated names "
        "of what is kept: query, key, value, attention_out, mlp_gate, mlp_up, mlp_out."
    )
    param_dtype: Literal["float32", "bfloat16"] = key("Dtype in which parameters are stored.")
    compute_dtype: Literal["auto", "float32", "bfloat16"] = key(
        "Dtype of activations and matrix products; auto: bfloat16 on accelerators, float32 on CPU."
    )
