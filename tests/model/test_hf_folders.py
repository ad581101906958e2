"""Hugging Face folders as they come: sharded, stale, incomplete, with fields we do not know."""

from __future__ import annotations

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model import HFError, load_hf, save_hf
from model.hf.config_json import read_config
from tests.model.test_references import OWN

NAME = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A copy of the Qwen2 reference: biases, embeddings not tied."""
    return shutil.copytree(OWN / "qwen2", tmp_path / "qwen2")


def _tensors(folder):
    found = {}
    for file in folder.glob("model*.safetensors"):
        found |= load_file(file)
    return found


def _rewrite(folder, change):
    tensors = load_file(folder / NAME)
    change(tensors)
    save_file(tensors, folder / NAME)


def _set(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("family", sorted(path.name for path in OWN.iterdir()))
def test_an_import_is_exported_bit_for_bit(family, tmp_path):
    loaded = load_hf(OWN / family)
    save_hf(loaded, tmp_path, max_file_bytes=60_000)
    before, after = load_file(OWN / family / NAME), _tensors(tmp_path)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert load_hf(tmp_path).model.config == (
        load_hf(OWN / family).model.config.__class__(
            **{**vars(loaded.model.config), "name": tmp_path.name}
        )
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["torch_dtype"] == config["dtype"] == "float32"


def test_bfloat16_comes_in_and_goes_out_exactly(folder, tmp_path):
    def halve(tensors):
        for key, value in tensors.items():
            tensors[key] = value.astype(ml_dtypes.bfloat16)

    _rewrite(folder, halve)
    stored = load_file(folder / NAME)
    save_hf(load_hf(folder, dtype="bfloat16"), tmp_path / "out")
    written = _tensors(tmp_path / "out")
    assert all(written[key].tobytes() == stored[key].tobytes() for key in stored)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    wide = load_hf(folder).parameters["head"]
    np.testing.assert_array_equal(wide, stored["lm_head.weight"].astype(np.float32).T)


def test_a_new_export_replaces_an_older_one(folder, tmp_path):
    loaded = load_hf(folder)
    save_hf(loaded, tmp_path / "out", max_file_bytes=20_000)
    assert len(list((tmp_path / "out").glob("model-*"))) > 2
    save_hf(loaded, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", NAME]


def test_a_missing_shard_is_named_and_stray_files_are_not_read(folder, tmp_path):
    out = tmp_path / "out"
    save_hf(load_hf(folder), out, max_file_bytes=20_000)
    save_file({"model.norm.weight": np.zeros(3, np.float32)}, out / "old.safetensors")
    load_hf(out)
    lost = sorted(out.glob("model-*"))[1]
    lost.unlink()
    with pytest.raises(HFError, match=lost.name):
        load_hf(out)


def test_a_tensor_is_read_from_the_file_that_the_index_names(folder, tmp_path):
    out, index = tmp_path / "out", "model.safetensors.index.json"
    save_hf(load_hf(folder), out, max_file_bytes=20_000)
    content = json.loads((out / index).read_text())
    first, second = sorted(out.glob("model-*.safetensors"))[:2]
    kept = next(key for key, name in content["weight_map"].items() if name == first.name)
    tensors = load_file(second)
    save_file({**tensors, kept: load_file(first)[kept] + 1}, second)  # left over from elsewhere
    again = load_hf(out)
    save_hf(again, tmp_path / "again")
    np.testing.assert_array_equal(
        _tensors(tmp_path / "again")[kept], load_file(folder / NAME)[kept]
    )

    lost = next(iter(tensors))
    save_file({key: value for key, value in tensors.items() if key != lost}, second)
    with pytest.raises(HFError, match=f"not there: {lost}"):
        load_hf(out)
    (out / index).write_text('{"weight_map": {"a": "../b.safetensors"}}')
    with pytest.raises(HFError, match="no weight_map"):
        load_hf(out)


def test_a_whole_file_counts_before_a_stale_index(folder):
    stale = {"weight_map": {"lm_head.weight": "gone-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(stale))
    load_hf(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "layers.1.mlp.up_proj.weight"),
        (lambda t: t.pop("lm_head.weight"), "missing: lm_head.weight"),
        (lambda t: t.update(norm=t.pop("model.norm.weight")), "missing: model.norm.weight"),
        (lambda t: t.update({"q_proj.lora_A.weight": np.zeros((2, 3))}), "q_proj.lora_A.weight"),
        (lambda t: t.update(extra=np.zeros(2, np.float32)), "no place for: extra"),
        (lambda t: t.update({"model.norm.weight": np.zeros(3, np.float32)}), r"norm.*\(3,\)"),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(32, ml_dtypes.float8_e4m3fn)}),
            "F8_E4M3",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(folder, change, named):
    _rewrite(folder, change)
    with pytest.raises(HFError, match=named):
        load_hf(folder)


def test_tensors_without_effect_are_left_out_with_a_warning(folder, caplog):
    key = "model.layers.0.self_attn.rotary_emb.inv_freq"
    _rewrite(folder, lambda t: t.update({key: np.zeros(4, np.float32)}))
    load_hf(folder)
    assert key in caplog.text


def test_a_tied_head_may_be_there_if_it_is_the_embedding(folder):
    _set(folder, tie_word_embeddings=True)
    with pytest.raises(HFError, match="tie_word_embeddings=false"):
        load_hf(folder)
    embedding = load_file(folder / NAME)["model.embed_tokens.weight"]
    _rewrite(folder, lambda t: t.update({"lm_head.weight": embedding}))
    assert "head" not in load_hf(folder).parameters


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size='32' is not a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: it takes 1 or more"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small' is not a number"),
        ({"is_causal": False}, "is_causal=False: not known"),
        ({"no_rope_layer_interval": 2}, "no_rope_layer_interval=2: not known"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling and rope_param"),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "lacks factor"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"use_sliding_window": True, "sliding_window": None, "layer_types": ["full_attention"]},
         "layer_types: 1"),
    ],
)  # fmt: skip
def test_fields_that_change_the_mathematics_are_refused_by_name(folder, values, named):
    _set(folder, **values)
    with pytest.raises(HFError, match=named):
        load_hf(folder)


@pytest.mark.parametrize(
    ("family", "values", "named"),
    [
        ("llama", {"sliding_window": 5}, "sliding_window=5: not known"),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types=.*: not known"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method='noaux_tc'"),
        ("deepseek_v3", {"n_group": None}, "n_group or topk_group is missing"),
        ("gemma3_text", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping=2.0"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters: rope_theta"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries, not 4"),
        ("olmo3", {"rope_parameters": None, "rope_theta": 1e4}, "rope_theta=10000.0 is read in"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, r"mlp_only_layers=\[1\]"),
        ("mixtral", {"num_local_experts": None}, "num_local_experts is missing"),
        ("deepseek_v3", {"mlp_layer_types": ["dense"] * 3}, "mlp_layer_types=.*: not known"),
        ("deepseek_v32", {"mlp_layer_types": ["sparse", "dense", "sparse"]}, "some dense, then"),
        ("deepseek_v32", {"layer_types": ["full_attention"] * 3}, "'indexed_attention'.* is"),
    ],
)
def test_what_another_family_would_read_is_refused(family, values, named):
    with pytest.raises(HFError, match=named):
        _read(family, **values)


def _read(name, **changes):
    values = {**json.loads((OWN / name / "config.json").read_text()), **changes}
    return read_config({key: value for key, value in values.items() if value is not LEFT_OUT})


LEFT_OUT = object()


def test_what_is_left_out_has_the_value_that_transformers_gives_it():
    gemma = _read("gemma2", final_logit_softcapping=LEFT_OUT, attn_logit_softcapping=None)
    assert (gemma.logit_soft_cap, gemma.attention_soft_cap) == (30.0, None)
    assert _read("mistral", sliding_window=LEFT_OUT).window == 4096
    assert _read("mistral", num_key_value_heads=LEFT_OUT).num_kv_heads == 8
    assert _read("deepseek_v2", q_lora_rank=LEFT_OUT).latent.query_rank == 1536
    indexer = _read("deepseek_v32", index_topk=LEFT_OUT, index_n_heads=LEFT_OUT).indexer
    assert (indexer.num_heads, indexer.top_k) == (64, 2048)
    assert _read("mixtral", rope_parameters=LEFT_OUT).rope_theta == 1e6
    scaling = _read("gpt_oss", rope_parameters=LEFT_OUT).rope_scaling
    assert (scaling.type, scaling.factor, scaling.original_seq_len) == ("yarn", 32.0, 4096)


def test_fields_that_change_the_mathematics_are_honoured():
    assert _read("llama", num_key_value_heads=None, head_dim=None).num_kv_heads == 4
    assert _read("llama", rms_norm_eps=1e-6).norm_eps == 1e-6
    assert _read("mistral", sliding_window=None).layer_pattern == "global"
    dense = {"mlp_layer_types": ["dense", "dense", "sparse"], "first_k_dense_replace": 1}
    assert _read("deepseek_v32", **dense).moe.dense_layers == 2
    window = {"use_sliding_window": True, "sliding_window": 9, "layer_types": None}
    late = _read("qwen2", **window, max_window_layers=1)
    assert (late.layer_pattern, late.window) == ("global,local", 9)
    old = {"rope_parameters": None, "rope_theta": 5e5}
    scaling = {"type": "linear", "factor": 2}
    read = _read("qwen3", **old, rope_scaling=scaling)
    assert (read.rope_theta, read.rope_scaling.type, read.rope_scaling.factor) == (5e5, "linear", 2)
