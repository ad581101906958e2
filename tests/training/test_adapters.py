"""LoRA: only the factors move, and both exports say the same as the run."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from configs import ConfigError, load
from model import load_hf
from model.lora import factors_only, joined_by_name, without_factors
from tests.model.test_references import OWN
from tests.training.small import (
    COMPILE_CACHE,
    initial_state,
    random_batch,
    small_setup,
    train_steps,
)
from training.folder_model import with_model_of_folder
from training.imported import read_folder, write_folder
from training.modes import run
from training.setup import open_setup

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


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_experts_have_the_factors_that_peft_gives_them(family, tmp_path):
    base = OWN / family
    words = ("adapter=lora", "adapter.targets=value,experts", "adapter.rank=2", "adapter.alpha=3")
    config = with_model_of_folder(load([f"init.from_hf={base}", *words, *SHORT]))
    setup = open_setup(config, jax.devices()[:1])
    rng = np.random.default_rng(0)
    factors = jax.tree.map(
        lambda spec: jnp.asarray(rng.normal(size=spec.shape), jnp.float32),
        factors_only(setup.specs.parameters),
    )
    parameters = joined_by_name(factors, read_folder(setup))
    for form in ("merged", "peft"):
        to = dataclasses.replace(config.export, form=form, path=str(tmp_path / form))
        one = dataclasses.replace(setup, config=dataclasses.replace(config, export=to))
        write_folder(one, parameters, tmp_path / "no run")

    written = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert written["target_modules"] == ["v_proj"]
    assert written["target_parameters"] == ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
    before, after = (load_hf(p).parameters["layers"] for p in (base, tmp_path / "merged"))
    saved = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    module = "base_model.model.model.layers.1.mlp.experts"
    old, new = (tree["1"]["moe"]["experts"] for tree in (before, after))
    change = {name: np.asarray(new[name] - old[name]) for name in ("gate", "up", "down")}
    if family == "qwen3_moe":  # layers 1 and 2 are a stack
        change = {name: both[0] for name, both in change.items()}
    gate_up = np.concatenate([change["gate"], change["up"]], axis=-1)
    if family == "gpt_oss":  # there they take turns
        gate_up = np.stack([change["gate"], change["up"]], axis=-1).reshape(gate_up.shape)
    expected = _as_peft_computes_it(saved, f"{module}.base_layer", num_experts=len(gate_up))
    np.testing.assert_allclose(gate_up, 3 / 2 * expected, atol=1e-5)
    expected = _as_peft_computes_it(saved, module, num_experts=len(gate_up))
    np.testing.assert_allclose(change["down"], 3 / 2 * expected, atol=1e-5)


def _as_peft_computes_it(saved, module, num_experts):
    """[E, in, out] from lora_A [E r, in] and lora_B [out, r E]."""
    down, up = saved[f"{module}.lora_A.weight"], saved[f"{module}.lora_B.weight"]
    down = down.reshape(num_experts, -1, down.shape[-1])
    return np.einsum("ore,eri->eio", up.reshape(len(up), -1, num_experts), down)


def test_factors_of_experts_are_trained_alike_on_every_mesh():
    words = ("adapter=lora", "adapter.targets=experts", "model.moe.num_experts=4")
    words += ("model.moe.expert_dim=16", "model.init_std=0.3", "optimizer.lr=0.1")
    losses = []
    for mesh, num_devices in ((), 1), (("mesh.expert=2", "mesh.tensor=2"), 4):
        setup = small_setup(*words, *mesh, num_devices=num_devices)
        _, metrics = train_steps(setup, [random_batch(setup)] * 3)
        losses.append([float(one["loss"]) for one in metrics])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][2] < losses[0][1]


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
        ((), "q_proj", "it has query, key, value, out, gate, up, down, all$"),
        (("model=mixtral_8x7b",), "gate", "it has query, key, value, out, all, experts"),
        (("model=deepseek_v3_671b",), "query", "query_down, query_up, kv_down, kv_up, out, gate"),
    ],
)
def test_targets_that_the_model_does_not_have_are_refused(model, target, legal):
    with pytest.raises(ConfigError, match=f"this model has no {target}; .*{legal}"):
        load([*model, *LORA[:3], f"adapter.targets=out,{target}"])
