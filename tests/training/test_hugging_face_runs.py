"""Runs that start from a Hugging Face folder and leave for one, through the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from configs import ConfigError, load
from configs.command_line import main
from configs.saved import write_config
from model import load_hf, parameter_specs
from sweeps import sweep
from tests.model.test_references import OWN
from tests.training.small import COMPILE_CACHE
from training.folder_model import completed, import_lines, with_model_of_folder
from training.imported import read_folder
from training.modes import run
from training.setup import open_setup

SHORT = ("data=synthetic", "data.seq_len=16", "data.batch=8", f"compile_cache={COMPILE_CACHE.name}")

SHAPE = (
    "vocab_size", "num_layers", "embed_dim", "mlp_dim", "num_heads", "num_kv_heads", "head_dim",
)  # fmt: skip


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


def test_a_number_of_the_scaling_that_the_folder_has_is_set_alone():
    folder = f"init.from_hf={OWN / 'gpt_oss'}"
    plain = with_model_of_folder(load([folder])).model.rope_scaling
    stretched = with_model_of_folder(load([folder, "model.rope_scaling.factor=64"])).model
    assert plain.type == "yarn" and plain.factor != 64
    assert stretched.rope_scaling == replace(plain, factor=64.0)


def test_a_frequency_that_is_the_default_of_foldtext_is_set_if_the_command_says_so():
    folder = f"init.from_hf={OWN / 'mixtral'}"
    plain = with_model_of_folder(load([folder])).model
    assert with_model_of_folder(load([folder, "model.rope_theta=1e4"])).model.rope_theta == 1e4
    assert plain.rope_theta != 1e4 == load([]).model.rope_theta


def test_how_a_model_is_run_and_trained_is_set_on_top_of_the_folder():
    folder = f"init.from_hf={OWN / 'qwen3_moe'}"
    plain = with_model_of_folder(load([folder])).model
    words = ["model.scan_layers=false", "model.param_dtype=bfloat16", "model.init_std=0.5"]
    words += ["model.compute_dtype=float32", "model.name=mine", "model.moe.balance_loss=0.25"]
    taken = with_model_of_folder(load([folder, *words])).model
    assert taken == replace(
        plain, scan_layers=False, param_dtype="bfloat16", init_std=0.5, compute_dtype="float32",
        name="mine", moe=replace(plain.moe, balance_loss=0.25),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["model.norm_eps=0.01"], ["model.norm_eps=0.01", "has 1e-05"]),
        (["model.num_layers=4"], ["model.num_layers=4", "has 2"]),  # the default of FoldText
        (["model.num_layers=3"], ["model.num_layers=3", "has 2"]),
        (
            ["model.window=64", "model.layer_pattern=local"],
            ["model.window=64", "has null", "model.layer_pattern=local", "has global"],
        ),
        (["model.moe.num_experts=4", "model.rope_theta=5e6"], ["model.moe.num_experts=4"]),
    ],
)
def test_what_the_folder_has_otherwise_is_refused_by_name(words, named):
    with pytest.raises(ConfigError) as refused:
        with_model_of_folder(load([f"init.from_hf={OWN / 'qwen3'}", *words]))
    assert len(refused.value.problems) == sum(text.startswith("model.") for text in named)
    for text in [*named, str(OWN / "qwen3"), "leave ", "model=NAME"]:
        assert text in str(refused.value)


@pytest.mark.parametrize("mode", ["train", "plan", "compile", "eval", "generate", "export"])
def test_every_mode_refuses_another_model_than_the_folders(mode, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("training.modes.start_devices", None)
    words = [f"mode={mode}", f"init.from_hf={OWN / 'qwen3'}", "data=synthetic"]
    words += [f"run.dir={tmp_path / 'run'}"] * (mode == "train")
    words += [f"export.path={tmp_path / 'out'}"] * (mode == "export")
    assert _command(*words, "model.norm_eps=0.01") == 2
    assert "model.norm_eps=0.01: init.from_hf=" in "".join(capfd.readouterr())


def test_what_the_folder_has_as_well_may_be_said():
    folder = f"init.from_hf={OWN / 'qwen3'}"
    plain = with_model_of_folder(load([folder])).model
    same = ["model.norm_eps=1e-5", f"model.num_layers={plain.num_layers}", "model.family=qwen3"]
    same += ["model.layer_pattern=global*2", f"model.query_scale={plain.head_dim}"]
    assert with_model_of_folder(load([folder, *same])).model == plain


def test_a_model_of_the_users_own_config_counts(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [tiny, _self_]\nname: mine\n")
    (tmp_path / "mine.yaml").write_text("defaults: [config, {override model: mine}, _self_]\n")
    words = [f"init.from_hf={OWN / 'qwen3'}"]
    config = load(words, config_dir=tmp_path, config_name="mine")
    assert with_model_of_folder(config).model.name == "mine"


def test_a_named_model_counts_and_is_told_where_it_differs(capsys, tmp_path):
    folder = f"init.from_hf={OWN / 'qwen3'}"
    plain = with_model_of_folder(load([folder])).model
    assert list(import_lines(with_model_of_folder(load([folder])))) == []
    shape = {name: getattr(plain, name) for name in SHAPE}
    words = ["model=qwen3_0.6b", *(f"model.{name}={value}" for name, value in shape.items())]
    words += ["model.norm_eps=1e-3", "model.rope_theta=5e5", "model.remat=full"]
    assert _command(folder, "mode=plan", "data=synthetic", *words) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("import: "))
    assert line.startswith(
        f"import: model=qwen3_0.6b differs from {Path(OWN / 'qwen3' / 'config.json')}: "
    )
    assert "norm_eps 0.001 (folder 1e-05)" in line
    assert f"rope_theta 500000.0 (folder {plain.rope_theta})" in line
    for same in ("remat", "init_std", "num_layers", "latent", "moe", "activation", "name"):
        assert same not in line.split(": ", 2)[2]


def test_a_run_is_called_after_its_folder_unless_it_has_a_name(tmp_path):
    folder = f"init.from_hf={OWN / 'qwen3'}"
    named = [with_model_of_folder(load([folder, *words])) for words in ([], ["run.name=mine"])]
    assert [config.run.name for config in named] == ["qwen3", "mine"]
    assert with_model_of_folder(load([folder, "run.name=tiny"])).run.name == "tiny"
    hidden = tmp_path / ".cache"
    hidden.symlink_to(OWN / "gemma2")
    assert with_model_of_folder(load([f"init.from_hf={hidden}"])).run.name == "gemma2"


def test_a_folder_is_refused_before_a_directory_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [f"init.from_hf={OWN / 'qwen3'}", "data=synthetic", "model.norm_eps=0.01"]
    for place in ([], ["run.dir=RUN"]):
        assert main(run, sweep, [*words, *place], completed) == 2
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("has 1e-05, which its weights go with") == 2


def test_a_run_directory_has_the_name_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = []
    words = [f"init.from_hf={OWN / 'qwen3'}", "data=synthetic"]
    assert main(lambda config: ran.append(config) or 0, sweep, words, completed) == 0
    assert Path(ran[0].run.dir).parent == tmp_path / "runs" / "qwen3"
    assert completed(ran[0]) == ran[0]


def test_a_run_that_goes_on_does_not_tell_the_folder_from_its_own_model(tmp_path):
    words = [f"init.from_hf={OWN / 'qwen3'}", "data=synthetic", "model.rope_theta=5e5"]
    words.append(f"run.dir={tmp_path}")
    (first,) = import_lines(started := completed(load(words)))
    assert first.startswith("the command differs from")
    write_config(started, tmp_path / "config.yaml")
    (again,) = import_lines(completed(load([f"run.dir={tmp_path}"])))
    assert again.startswith(f"the run in {tmp_path} differs from"), "it stopped before it saved"
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    for resumed in ([f"run.dir={tmp_path}"], words):
        assert list(import_lines(completed(load(resumed)))) == []


def test_a_named_tiny_is_a_named_model():
    config = with_model_of_folder(load([f"init.from_hf={OWN / 'qwen3'}", "model=tiny"]))
    assert config.model.embed_dim == 192


def test_a_folder_without_tokenizer_says_what_reads_text(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("training.modes.start_devices", None)
    (tmp_path / "text.txt").write_text("words")
    words = [f"init.from_hf={OWN / 'qwen3'}", "mode=compile"]
    assert _command(*words, "data=text", f"data.path={tmp_path / 'text.txt'}") == 2
    said = "".join(capfd.readouterr())
    assert "tokens and no tokenizer for data.source=text: data.tokenizer=FILE, or" in said
    assert "data=synthetic or data=tokens for ids" in said


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
