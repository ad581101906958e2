"""Turns a GGUF file of a Llama-family model into a Hugging Face folder, in float32.

    pip install 'foldtext[hf,gguf]'
    python tools/gguf_to_hf.py MODEL.gguf FOLDER

FOLDER gets config.json, model.safetensors, and, for byte-level BPE, tokenizer.json and
tokenizer_config.json. Quantised tensors are dequantised, which rounds nothing further. The model
is held in memory once. GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, TokenType, dequantize
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",  # left out where the embeddings are tied
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# How a text is cut before byte-pair merges, by tokenizer.ggml.pre.
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
CUTS = {"gpt-2": WORDS, "smollm": pre_tokenizers.Sequence([DIGITS, WORDS])}
NAMED_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}


def convert(file: Path, folder: Path) -> None:
    """Writes the folder. SystemExit, before anything is written, for what it would get wrong."""
    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = hf_config(fields, {tensor.name for tensor in reader.tensors})
    tensors = dict(hf_tensor(tensor, config) for tensor in reader.tensors)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is made for its owner alone
    _write_json(folder / "config.json", config)
    if fields.get("tokenizer.ggml.pre") in CUTS:
        bpe_tokenizer(fields).save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", tokenizer_config(fields))
    else:
        kind = f"tokenizer.ggml.pre={fields.get('tokenizer.ggml.pre')}"
        print(f"no tokenizer.json: {kind} is none of {', '.join(CUTS)}", file=sys.stderr)


def hf_config(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """config.json from the metadata and the names of the tensors."""
    if fields["general.architecture"] != "llama":
        raise SystemExit(f"general.architecture={fields['general.architecture']}: not llama")
    wrong = [key for key in fields if "rope.scaling" in key or "expert" in key]
    wrong += [name for name in names if name not in TOP_LEVEL and not _layer_name(name)]
    if wrong:
        raise SystemExit(f"not converted: {', '.join(sorted(wrong)[:8])}")
    sizes = {key.removeprefix("llama."): value for key, value in fields.items()}
    heads, embed_dim = sizes["attention.head_count"], sizes["embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": embed_dim,
        "intermediate_size": sizes["feed_forward_length"],
        "num_hidden_layers": sizes["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": sizes.get("attention.head_count_kv", heads),
        "head_dim": sizes.get("attention.key_length", embed_dim // heads),
        "hidden_act": "silu",
        "max_position_embeddings": sizes["context_length"],
        "rms_norm_eps": _shortest(sizes["attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(sizes.get("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def hf_tensor(tensor: Any, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Name and float32 values of one tensor, [out, in] for a projection."""
    values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
    if ".attn_q." in tensor.name:
        values = halves_from_pairs(values, config["num_attention_heads"])
    if ".attn_k." in tensor.name:
        values = halves_from_pairs(values, config["num_key_value_heads"])
    name = TOP_LEVEL.get(tensor.name) or _layer_name(tensor.name)
    return name, np.ascontiguousarray(values)


def halves_from_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of the rows of query and key projections.

    It rotates neighbours (2i, 2i+1), transformers rotates (i, i + H/2), so its converter
    interleaves the halves of each head: rows 0 1 2 3 of a head of 4 lie there as 0 2 1 3.
    """
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def bpe_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """A byte-level BPE tokenizer; control tokens are special."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = CUTS[fields["tokenizer.ggml.pre"]]
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens(special)
    return tokenizer


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens by name, and the chat template."""
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in NAMED_TOKENS.items()}
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": fields.get("tokenizer.ggml.add_bos_token", False),
        **{name: tokens[i] for name, i in ids.items() if i is not None},
        "chat_template": fields.get("tokenizer.chat_template"),
    }


def _layer_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; other names -> nothing."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in IN_LAYER:
        return ""
    return f"model.layers.{match[1]}.{IN_LAYER[match[2]]}.weight"


def _shortest(value: float) -> float:
    """The number that was written, from its float32: 9.9999997e-06 -> 1e-05."""
    return float(str(np.float32(value)))


def _write_json(path: Path, values: dict[str, Any]) -> None:
    kept = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]).expanduser())
