"""Tiny random models of every family with the numbers that Hugging Face transformers computes.

    pip install torch transformers          # CPU builds are enough
    python tools/make_references.py tests/model/references [family ...]

Each family gets a folder with config.json, model.safetensors and reference.npz: input_ids, logits,
loss, packed rows (input, position and segment ids; labels already shifted, -100 is ignored) with
logits_packed and loss_packed, and grad/<tensor> of the loss for a few tensors. Values of windows,
caps and scalings are unusual on purpose, so that a constant in the code under test shows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

ROWS, LENGTH, VOCAB = 2, 24, 64
DOCUMENTS = ((7, 1, 11), (13, 9))  # lengths in each packed row; the rest is padding

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 6.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
}
_LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "num_hidden_layers": 3,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": _LLAMA3,
    },
    "mistral": {"sliding_window": 5},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {
        "num_hidden_layers": 3,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
        "norm_topk_prob": False,
    },
    "gemma2": {
        "tie_word_embeddings": True,
        "sliding_window": 5,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 2.0,
    },
    "gemma3_text": {
        "tie_word_embeddings": True,
        "num_hidden_layers": 6,
        "sliding_window": 5,
        "query_pre_attn_scalar": 12,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {},
    "olmo3": {"num_hidden_layers": 4, "sliding_window": 5},
    "smollm3": {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 5,
        "rope_parameters": {**_YARN, "truncate": False},
    },
    "deepseek_v2": {**_LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**_LATENT, "q_lora_rank": 16, "routed_scaling_factor": 2.5},
    "deepseek_v32": {
        **_LATENT,
        "q_lora_rank": 16,
        "index_n_heads": 8,
        "index_head_dim": 10,
        "index_topk": 5,
        "mlp_bias": False,
    },
}
_AS_STORED = {"mixtral": (".mlp.gate.", ".block_sparse_moe.gate.")}
GRADIENTS = ("q_proj.weight", "q_b_proj.weight", "kv_b_proj.weight", "gate.weight", "sinks")


def main(target: Path, families: list[str]) -> None:
    for name in families or list(FAMILIES):
        model = make_model(name)
        folder = target / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        np.savez_compressed(folder / "reference.npz", **numbers(model))
        print(name, sum(file.stat().st_size for file in folder.iterdir()))


def make_model(name: str) -> PreTrainedModel:
    """A model of the family whose every parameter is random and matters."""
    config = AutoConfig.for_model(name, **{**_SIZES, **FAMILIES[name]})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for key, tensor in tensors:
        if "rotary" in key or "embed_scale" in key or not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        is_norm = "norm" in key
        std = 0.1 if is_norm else 0.3 if "gate.weight" in key or "router" in key else 0.15
        mean = 1.0 if is_norm and not name.startswith("gemma") else 0.0
        tensor.data.copy_(mean + std * noise)
    return model


def numbers(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Everything in reference.npz."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(1, VOCAB, (2 * ROWS, LENGTH), generator=generator)
    tokens, packed = rows[:ROWS], rows[ROWS:]
    logits = model(tokens).logits
    loss = cross_entropy(logits[:, :-1].reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    loss.backward()
    found = {"input_ids": tokens, "logits": logits, "loss": loss, **packed_numbers(model, packed)}
    for name, gradient in gradients(model).items():
        found[f"grad/{name}"] = gradient
    return {k: v.detach().numpy().astype(_DTYPES.get(v.dtype)) for k, v in found.items()}


_DTYPES = {torch.int64: np.int32, torch.float32: np.float32}


def packed_numbers(model: PreTrainedModel, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Rows of several documents: each document's logits are those that it has on its own."""
    logits = torch.zeros(*tokens.shape, VOCAB)
    positions, segments = torch.zeros_like(tokens), torch.zeros_like(tokens)
    labels = torch.full_like(tokens, -100)
    for row, lengths in enumerate(DOCUMENTS):
        ends = np.cumsum(lengths)
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True), start=1):
            part = slice(int(end) - length, int(end))
            with torch.no_grad():
                logits[row, part] = model(tokens[row : row + 1, part]).logits[0]
            positions[row, part] = torch.arange(length)
            segments[row, part] = number
            labels[row, part.start : part.stop - 1] = tokens[row, part.start + 1 : part.stop]
    return {
        "packed_input_ids": tokens,
        "packed_position_ids": positions,
        "packed_segment_ids": segments,
        "packed_labels": labels,
        "logits_packed": logits,
        "loss_packed": cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1)),
    }


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Gradients of the embedding, the last norm, and what GRADIENTS names in the last layer."""
    last = f"layers.{model.config.num_hidden_layers - 1}."
    return {
        name.replace(*_AS_STORED.get(model.config.model_type, ("", ""))): tensor.grad
        for name, tensor in model.named_parameters()
        if name in ("model.embed_tokens.weight", "model.norm.weight")
        or (last in name and name.endswith(GRADIENTS) and tensor.grad is not None)
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
