"""Runs that start from a Hugging Face folder and leave for one, through the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from configs import load
from model import load_hf, parameter_specs
from tests.model.test_references import OWN
from tests.training.small import COMPILE_CACHE
from training.imported import read_folder, with_model_of_folder
from training.modes import run
from training.setup import open_setup

SHORT = ("data=synthetic", "data.seq_len=16", "data.batch=8", f"compile_cache={COMPILE_CACHE.name}")


def _command(*words):
    return run(load(words))


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2"])
def test_every_device_gets_its_slices_of_the_file(family):
    words = [f"init.from_hf={OWN / family}", "mesh.context=2", "mesh.tensor=2", *SHORT]
    setup = open_setup(with_model_of_folder(load(words)), jax.devices())
    expected = jax.tree.leaves(load_hf(OWN / family).parameters)
    found = jax.tree.leaves(read_folder(setup))
    shardings = jax.tree.leaves(setup.abstract_state().parameters)
    assert len(jax.tree.leaves(parameter_specs(setup.model))) == len(found)
    for one, other, like in zip(found, expected, shardings, strict=True):
        assert one.sharding == like.sharding
        np.testing.assert_array_equal(one, other)


def test_the_model_is_that_of_the_folder_unless_the_command_names_one():
    folder = f"init.from_hf={OWN / 'qwen3'}"
    taken = with_model_of_folder(load([folder, "model.remat=full"])).model
    assert (taken.family, taken.embed_dim, taken.remat) == ("qwen3", 32, "full")
    named = with_model_of_folder(load([folder, "model=qwen3_0.6b"])).model
    assert named.embed_dim == 1024


def test_rotary_frequencies_of_the_command_replace_those_of_the_folder():
    words = [f"init.from_hf={OWN / 'qwen3'}", "model.rope_scaling.type=yarn"]
    words += ["model.rope_scaling.factor=4", "model.rope_scaling.original_seq_len=128"]
    plain = with_model_of_folder(load(words[:1])).model
    stretched = with_model_of_folder(load(words)).model
    assert (stretched.rope_scaling.type, stretched.rope_scaling.factor) == ("yarn", 4)
    assert replace(stretched, rope_scaling=plain.rope_scaling) == plain
    moved = with_model_of_folder(load([words[0], "model.rope_theta=5e6"])).model
    assert moved == replace(plain, rope_theta=5e6)


def test_a_run_goes_from_folder_to_folder(tmp_path, capsys):
    rundir, out = tmp_path / "run", tmp_path / "out"
    words = (f"init.from_hf={OWN / 'qwen3'}", "optimizer.lr=0", "optimizer.weight_decay=0")
    words += ("train.steps=1", f"run.dir={rundir}", *SHORT)
    assert _command(*words) == 0
    assert _command(*words) == 0, "the same command finds the run finished"
    assert _command("mode=export", f"run.dir={rundir}", f"export.path={out}") == 0
    before, after = (load_file(p / "model.safetensors") for p in (OWN / "qwen3", out))
    assert all(np.array_equal(before[key], after[key]) for key in before)
    carried = json.loads((out / "config.json").read_text())
    assert carried["max_position_embeddings"] == 128


@pytest.mark.parametrize("mode", ["train", "plan"])
def test_what_attention_cannot_do_for_the_model_of_a_folder_is_refused_before_jax_starts(
    mode, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr("training.modes.start_devices", None)
    words = [f"mode={mode}", f"init.from_hf={OWN / 'gemma2'}", f"run.dir={tmp_path / 'run'}"]
    words += ["attention.kernel=cudnn", "data.pack=false", *SHORT]
    assert _command(*words) == 2
    said = "".join(capfd.readouterr())
    assert "attention.kernel=cudnn does no sliding windows (model.window=5)" in said
    assert "model.attention_soft_cap=3.0" in said
    words[3:5] = ["context_parallel.strategy=ulysses", "mesh.context=8"]
    assert _command(*words) == 2
    assert "model.num_heads(4) among mesh.context=8" in "".join(capfd.readouterr())


def test_heads_of_a_folder_count_and_not_those_of_the_default_model():
    words = (f"init.from_hf={OWN / 'qwen2'}", "mesh.tensor=16")
    assert (
        load(words).mesh.tensor == 16
    )  # the default model has 8 heads; the folder is not read yet


def test_an_unknown_model_is_refused_before_anything_is_compiled(tmp_path, capfd):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert _command(f"init.from_hf={tmp_path}", f"run.dir={tmp_path / 'run'}", *SHORT) == 2
    said = capfd.readouterr()
    assert "gpt2" in said.out + said.err
