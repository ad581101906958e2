"""A small GGUF file, written by the package gguf, becomes a folder that FoldText reads."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from configs import load
from data import open_tokenizer
from model import load_hf
from tools.gguf_to_hf import convert

DIM, MLP, HEADS, KV_HEADS = 32, 64, 4, 2
TOKENS = ["<s>", "</s>", "a", "b", "\u0120", "ab", "1", "2"]  # U+0120 is how a space is spelt
MERGES = ["a b"]


def rows_as_in_llama_cpp(rows, num_heads):
    """What llama.cpp's converter does to query and key projections, row by row."""
    width = len(rows) // num_heads
    order = [
        head * width + half * width // 2 + i
        for head in range(num_heads)
        for i in range(width // 2)
        for half in (0, 1)
    ]
    return rows[order]


@pytest.fixture(scope="module")
def tensors():
    """The tensors of the folder, float32, by their names there."""
    rng = np.random.default_rng(0)
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens": (len(TOKENS), DIM),
        "model.norm": (DIM,),
        f"{layer}.input_layernorm": (DIM,),
        f"{layer}.post_attention_layernorm": (DIM,),
        f"{layer}.self_attn.q_proj": (DIM, DIM),
        f"{layer}.self_attn.k_proj": (DIM // 2, DIM),
        f"{layer}.self_attn.v_proj": (DIM // 2, DIM),
        f"{layer}.self_attn.o_proj": (DIM, DIM),
        f"{layer}.mlp.gate_proj": (MLP, DIM),
        f"{layer}.mlp.up_proj": (MLP, DIM),
        f"{layer}.mlp.down_proj": (DIM, MLP),
    }
    return {f"{k}.weight": rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}


def write_gguf(path, tensors, **extra):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(DIM)
    writer.add_block_count(1)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(20000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, value in extra.items():
        writer.add_string(name.replace("__", "."), value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    for name, values in tensors.items():
        heads = HEADS if ".q_proj" in name else KV_HEADS if ".k_proj" in name else 0
        written = rows_as_in_llama_cpp(values, heads) if heads else values
        kind = gguf.GGMLQuantizationType.Q8_0 if "down_proj" in name else None
        if kind is not None:
            written = gguf.quantize(written, kind)
        short = names.get_name(name, (".weight",))
        writer.add_tensor(f"{short.removesuffix('.weight')}.weight", written, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def folder(tensors, tmp_path_factory):
    place = tmp_path_factory.mktemp("gguf")
    convert(write_gguf(place / "model.gguf", tensors), place / "hf")
    return place / "hf"


def test_every_tensor_comes_back(folder, tensors):
    found = load_file(folder / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        if "down_proj" not in name:
            np.testing.assert_array_equal(found[name], values)
            continue
        blocks = values.reshape(-1, 32)  # Q8_0: a float16 step for 32 numbers, 127 steps a side
        steps = np.float16(np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float32)
        error = np.abs(found[name].reshape(-1, 32) - blocks)
        assert (error <= 0.6 * steps).all() and error.max() > 0


def test_config_json_says_what_the_metadata_said(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == 20000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert (config["head_dim"], config["num_key_value_heads"], config["vocab_size"]) == (8, 2, 8)


def test_foldtext_reads_model_and_tokenizer(folder):
    assert load_hf(folder)([[2, 3, 5]]).shape == (1, 3, 8)
    tokenizer = open_tokenizer(load([f"data.tokenizer={folder}"]).data, 8)
    assert tokenizer.encode("ab a12") == [5, 4, 2, 6, 7]
    assert tokenizer.decode([5, 4, 2, 6, 7, 1]) == "ab a12"
    assert (tokenizer.eos_id, tokenizer.prefix) == (1, ())


def test_what_would_come_out_wrong_is_refused(tensors, tmp_path):
    file = write_gguf(tmp_path / "a.gguf", tensors, llama__rope__scaling__type="linear")
    with pytest.raises(SystemExit, match=r"llama\.rope\.scaling\.type"):
        convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
