"""LoRA: only the factors move, and both exports say the same as the run."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from configs import ConfigError, load
from model.lora import factors_only, without_factors
from tests.model.test_references import OWN
from tests.training.small import (
    COMPILE_CACHE,
    initial_state,
    random_batch,
    small_setup,
    train_steps,
)
from training.modes import run

BASE = OWN / "qwen2"
SHORT = ("data=synthetic", "data.seq_len=16", "data.batch=8", f"compile_cache={COMPILE_CACHE.name}")
LORA = ("adapter=lora", "adapter.rank=2", "adapter.alpha=3", "adapter.targets=query,out,down")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A short LoRA run on Qwen2, exported in both forms."""
    root = tmp_path_factory.mktemp("lora")
    words = [f"init.from_hf={BASE}", "train.steps=2", "optimizer.lr=0.1", *LORA, *SHORT]
    assert run(load([*words, f"run.dir={root / 'run'}"])) == 0
    for form in ("merged", "peft"):
        words = ["mode=export", f"run.dir={root / 'run'}", f"export.form={form}"]
        assert run(load([*words, f"export.path={root / form}"])) == 0
    return root


def test_the_merged_export_is_the_base_plus_the_product_of_the_factors(exports):
    base, merged = (load_file(p / "model.safetensors") for p in (BASE, exports / "merged"))
    factors = load_file(exports / "peft" / "adapter_model.safetensors")
    assert base.keys() == merged.keys()
    moved = 0
    for key, before in base.items():
        name = f"base_model.model.{key.removesuffix('.weight')}"
        if f"{name}.lora_A.weight" not in factors:
            np.testing.assert_array_equal(merged[key], before)
            continue
        down, up = factors[f"{name}.lora_A.weight"], factors[f"{name}.lora_B.weight"]
        assert down.shape == (2, before.shape[1])
        np.testing.assert_allclose(merged[key], before + 3 / 2 * up @ down, atol=1e-6)
        moved += bool(np.abs(up).max() > 0)
    assert moved == 2 * 3, "two layers with three targets"


def test_peft_is_told_rank_alpha_and_modules(exports):
    written = json.loads((exports / "peft" / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"], written["peft_type"]) == (2, 3.0, "LORA")
    assert written["target_modules"] == ["down_proj", "o_proj", "q_proj"]
    assert written["base_model_name_or_path"] == str(BASE)


def test_only_factors_have_moments_and_move():
    setup = small_setup(*LORA, "optimizer.weight_decay=0.5")
    state, _ = train_steps(setup, [random_batch(setup)])
    before = initial_state(setup)
    leaves = jax.tree_util.tree_leaves_with_path(state.optimizer)
    moments = [jax.tree_util.keystr(path) for path, leaf in leaves if leaf.ndim]
    assert moments and all("lora_" in path for path in moments)
    for one, other in _pairs(without_factors, state, before):
        np.testing.assert_array_equal(one, other)
    changed = [not np.array_equal(a, b) for a, b in _pairs(factors_only, state, before)]
    assert any(changed)


def _pairs(part, state, before):
    trees = (jax.tree.leaves(part(s.parameters)) for s in (state, before))
    return zip(*trees, strict=True)


@pytest.mark.parametrize(
    ("model", "target", "legal"),
    [
        ((), "q_proj", "it has query, key, value, out, gate, up, down$"),
        (("model=mixtral_8x7b",), "gate", "it has query, key, value, out, and experts have no"),
        (("model=deepseek_v3_671b",), "query", "query_down, query_up, kv_down, kv_up, out, gate"),
    ],
)
def test_targets_that_the_model_does_not_have_are_refused(model, target, legal):
    with pytest.raises(ConfigError, match=f"{target}: this model has no such.*{legal}"):
        load([*model, *LORA[:3], f"adapter.targets=out,{target}"])
