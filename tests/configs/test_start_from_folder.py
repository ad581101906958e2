"""init.from_hf without a run: modes that read it, and the tokenizer that comes with it."""

import importlib.util

import pytest

from configs import ConfigError, load


@pytest.fixture
def folder(tmp_path):
    """A folder with the names of what a Hugging Face folder holds."""
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize("mode", ["eval", "generate"])
def test_a_mode_that_reads_a_run_takes_the_folder_instead(mode, folder):
    assert load([f"mode={mode}", f"init.from_hf={folder}"]).mode == mode
    with pytest.raises(ConfigError, match="needs a trained run"):
        load([f"mode={mode}"])


def test_the_tokenizer_is_that_of_the_folder_unless_another_is_named(folder, tmp_path):
    assert load([f"init.from_hf={folder}"]).data.tokenizer == str(folder)
    other = tmp_path / "other.json"
    other.write_text("{}")
    named = load([f"init.from_hf={folder}", f"data.tokenizer={other}"])
    assert named.data.tokenizer == str(other)
    assert load([f"init.from_hf={folder}", "data=synthetic"]).data.tokenizer is None
    (folder / "tokenizer.json").unlink()
    assert load([f"init.from_hf={folder}"]).data.tokenizer is None


def test_every_document_may_be_scored_but_not_held_out_of_training(folder):
    assert load([f"init.from_hf={folder}", "mode=eval", "data.eval_fraction=1"])
    with pytest.raises(ConfigError, match="nothing is left to train on"):
        load(["data.eval_fraction=1"])


def test_a_package_that_reads_the_weights_is_asked_for_at_once(folder, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "safetensors" else found(name)
    )
    with pytest.raises(ConfigError, match=r"safetensors.*pip install -e '\.\[hf\]'"):
        load([f"init.from_hf={folder}"])
    assert load([f"init.from_hf={folder}", "mode=plan"])


@pytest.mark.parametrize(
    ("words", "keys", "is_whole"),
    [
        ([], set(), False),
        (["model.window=null", "seed=3"], {"model.window"}, False),
        (["experiment=cp_comparison"], None, True),
        (["model=tiny"], None, True),
    ],
)
def test_the_config_knows_what_the_command_says_of_the_model(words, keys, is_whole, folder):
    asked = load([f"init.from_hf={folder}", *words]).asked
    assert keys is None or asked.keys == keys
    assert asked.is_whole is is_whole
