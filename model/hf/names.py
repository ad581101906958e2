"""What the families call their tensors."""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, tuple[str, str]]
"""Path of a parameter -> tensor name and form (see forms.py). Paths below `layers` are named below
`model.layers.{layer}.`; `{expert}` in a name means one tensor an expert."""


def _mlp(ours: str, theirs: str, gate: str, up: str, down: str) -> dict[str, tuple[str, str]]:
    return {
        f"layers/{ours}/gate/kernel": (f"{theirs}.{gate}.weight", "F D -> D F"),
        f"layers/{ours}/up/kernel": (f"{theirs}.{up}.weight", "F D -> D F"),
        f"layers/{ours}/down/kernel": (f"{theirs}.{down}.weight", "D F -> F D"),
        f"layers/{ours}/gate/bias": (f"{theirs}.{gate}.bias", "F"),
        f"layers/{ours}/up/bias": (f"{theirs}.{up}.bias", "F"),
        f"layers/{ours}/down/bias": (f"{theirs}.{down}.bias", "D"),
    }


def _experts(theirs: str, gate: str, up: str, down: str) -> dict[str, tuple[str, str]]:
    return {
        "layers/moe/experts/gate": (f"{theirs}.{{expert}}.{gate}.weight", "F D -> E D F"),
        "layers/moe/experts/up": (f"{theirs}.{{expert}}.{up}.weight", "F D -> E D F"),
        "layers/moe/experts/down": (f"{theirs}.{{expert}}.{down}.weight", "D F -> E F D"),
    }


STANDARD: Names = {
    "embedding": ("model.embed_tokens.weight", "V D"),
    "final_norm/scale": ("model.norm.weight", "D"),
    "head": ("lm_head.weight", "V D -> D V"),
    "layers/attention_norm/scale": ("input_layernorm.weight", "D"),
    "layers/attention/query/kernel": ("self_attn.q_proj.weight", "(N H) D -> D N H"),
    "layers/attention/key/kernel": ("self_attn.k_proj.weight", "(K H) D -> D K H"),
    "layers/attention/value/kernel": ("self_attn.v_proj.weight", "(K H) D -> D K H"),
    "layers/attention/out/kernel": ("self_attn.o_proj.weight", "D (N H) -> N H D"),
    "layers/attention/query/bias": ("self_attn.q_proj.bias", "(N H) -> N H"),
    "layers/attention/key/bias": ("self_attn.k_proj.bias", "(K H) -> K H"),
    "layers/attention/value/bias": ("self_attn.v_proj.bias", "(K H) -> K H"),
    "layers/attention/out/bias": ("self_attn.o_proj.bias", "D"),
    "layers/attention/query_norm/scale": ("self_attn.q_norm.weight", "H"),
    "layers/attention/key_norm/scale": ("self_attn.k_norm.weight", "H"),
    "layers/mlp_norm/scale": ("post_attention_layernorm.weight", "D"),
    **_mlp("mlp", "mlp", "gate_proj", "up_proj", "down_proj"),
    "layers/moe/router/kernel": ("mlp.gate.weight", "E D -> D E"),
    **_experts("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    **_mlp("moe/shared", "mlp.shared_experts", "gate_proj", "up_proj", "down_proj"),
}

NORMS_AROUND: Names = {  # Gemma: before and after each sublayer
    "layers/attention_post_norm/scale": ("post_attention_layernorm.weight", "D"),
    "layers/mlp_norm/scale": ("pre_feedforward_layernorm.weight", "D"),
    "layers/mlp_post_norm/scale": ("post_feedforward_layernorm.weight", "D"),
}
NORMS_AFTER: Names = {  # OLMo 2: after each sublayer; queries and keys over all heads
    "layers/attention_post_norm/scale": ("post_attention_layernorm.weight", "D"),
    "layers/mlp_post_norm/scale": ("post_feedforward_layernorm.weight", "D"),
    "layers/attention/query_norm/scale": ("self_attn.q_norm.weight", "(N H) -> N H"),
    "layers/attention/key_norm/scale": ("self_attn.k_norm.weight", "(K H) -> K H"),
}
LATENT: Names = {
    "layers/attention/query_down/kernel": ("self_attn.q_a_proj.weight", "R D -> D R"),
    "layers/attention/query_down/bias": ("self_attn.q_a_proj.bias", "R"),
    "layers/attention/query_norm/scale": ("self_attn.q_a_layernorm.weight", "R"),
    "layers/attention/query_up/kernel": ("self_attn.q_b_proj.weight", "(N H) R -> R N H"),
    "layers/attention/kv_down/kernel": ("self_attn.kv_a_proj_with_mqa.weight", "R D -> D R"),
    "layers/attention/kv_down/bias": ("self_attn.kv_a_proj_with_mqa.bias", "R"),
    "layers/attention/kv_norm/scale": ("self_attn.kv_a_layernorm.weight", "R"),
    "layers/attention/kv_up/kernel": ("self_attn.kv_b_proj.weight", "(N H) R -> R N H"),
    "layers/moe/router/correction": ("mlp.gate.e_score_correction_bias", "E"),
}
INDEXED: Names = {
    **LATENT,
    "layers/attention/indexer/query/kernel": ("self_attn.indexer.wq_b.weight", "(I H) R -> R I H"),
    "layers/attention/indexer/key/kernel": ("self_attn.indexer.wk.weight", "H D -> D H"),
    "layers/attention/indexer/key_norm/scale": ("self_attn.indexer.k_norm.weight", "H"),
    "layers/attention/indexer/key_norm/bias": ("self_attn.indexer.k_norm.bias", "H"),
    "layers/attention/indexer/weights/kernel": (
        "self_attn.indexer.weights_proj.weight",
        "I D -> D I",
    ),
}
MIXTRAL: Names = {
    "layers/moe/router/kernel": ("block_sparse_moe.gate.weight", "E D -> D E"),
    **_experts("block_sparse_moe.experts", "w1", "w3", "w2"),
}
GPT_OSS: Names = {
    "layers/attention/sinks": ("self_attn.sinks", "N"),
    "layers/moe/router/kernel": ("mlp.router.weight", "E D -> D E"),
    "layers/moe/router/bias": ("mlp.router.bias", "E"),
    "layers/moe/experts/gate": ("mlp.experts.gate_up_proj", "E D (F 0/2) -> E D F"),
    "layers/moe/experts/up": ("mlp.experts.gate_up_proj", "E D (F 1/2) -> E D F"),
    "layers/moe/experts/gate_bias": ("mlp.experts.gate_up_proj_bias", "E (F 0/2) -> E F"),
    "layers/moe/experts/up_bias": ("mlp.experts.gate_up_proj_bias", "E (F 1/2) -> E F"),
    "layers/moe/experts/down": ("mlp.experts.down_proj", "E F D"),
    "layers/moe/experts/down_bias": ("mlp.experts.down_proj_bias", "E D"),
}


def factor_names(names: Names) -> Names:
    """Names and forms of the factors of every kernel whose tensor is a matrix.

    "(N H) D -> D N H" gives lora_A "r D -> D r" and lora_B "(N H) r -> r N H".
    """
    found = {}
    for path, (name, form) in names.items():
        left, arrow, _ = form.partition("->")
        if not arrow or not path.endswith("/kernel") or "E" in left:
            continue
        rows, columns = _two_axes(left.strip())
        module = name.removesuffix(".weight")
        inputs, outputs = columns.strip("()"), rows.strip("()")
        base = path.removesuffix("kernel")
        found[f"{base}lora_down"] = (f"{module}.lora_A.weight", f"r {columns} -> {inputs} r")
        found[f"{base}lora_up"] = (f"{module}.lora_B.weight", f"{rows} r -> r {outputs}")
    return found


def expert_factor_names(is_interleaved: bool) -> Names:
    """Names and forms of the experts' factors, which PEFT nests as it wraps one matrix, then the
    other; gate and up are one matrix there, side by side or (gpt-oss) taking turns."""
    name, columns = "mlp.experts", "(F 2)" if is_interleaved else "(2 F)"
    of_gate_up, of_down = f"{name}.base_layer", name
    base = "layers/moe/experts/factors"
    return {
        f"{base}/gate_up/lora_down": (f"{of_gate_up}.lora_A.weight", "(E r) D -> E D r"),
        f"{base}/gate_up/lora_up": (f"{of_gate_up}.lora_B.weight", f"{columns} (r E) -> E r 2 F"),
        f"{base}/down/lora_down": (f"{of_down}.lora_A.weight", "(E r) F -> E F r"),
        f"{base}/down/lora_up": (f"{of_down}.lora_B.weight", "D (r E) -> E r D"),
    }


def _two_axes(text: str) -> tuple[str, str]:
    """ "(N H) D" -> "(N H)", "D"."""
    if text.startswith("("):
        rows, _, columns = text.partition(") ")
        return f"{rows})", columns
    rows, _, columns = text.partition(" ")
    return rows, columns
