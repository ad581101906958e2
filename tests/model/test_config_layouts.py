"""config.json as transformers 4 wrote it reads as what transformers 5 writes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from model import load_hf
from model.hf.config_json import read_config
from tests.model.test_references import OWN, SHARED

# Families whose window version 4 gave without layer_types, and how it said which layers have it.
WINDOW_BY_RULE = {
    "gemma2": {},
    "gemma3_text": {"sliding_window_pattern": 6},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
}


def _own():
    return sorted(path.name for path in OWN.iterdir())


def _version_4(values):
    """Version 5 keeps all of rope in rope_parameters, by kind of layer where kinds differ."""
    old = dict(values)
    old["torch_dtype"] = old.pop("dtype")
    rope = old.pop("rope_parameters")
    if "full_attention" in rope:
        sliding, rope = rope["sliding_attention"], rope["full_attention"]
        if values["model_type"] == "gemma3_text":
            old["rope_local_base_freq"] = sliding["rope_theta"]
    scaling = {("type" if key == "rope_type" else key): value for key, value in rope.items()}
    old["rope_theta"] = scaling.pop("rope_theta")
    old["rope_scaling"] = None if scaling["type"] == "default" else scaling
    if values["model_type"] in WINDOW_BY_RULE:
        old.pop("layer_types", None)
        old |= WINDOW_BY_RULE[values["model_type"]]
    return old


@pytest.mark.parametrize("family", _own())
def test_both_layouts_of_a_config_are_the_same_model(family):
    values = json.loads((OWN / family / "config.json").read_text())
    old = _version_4(values)
    assert not {"rope_parameters", "dtype"} & old.keys()
    assert read_config(old) == read_config(values)


@pytest.mark.parametrize("path", sorted(SHARED.glob("*/config.v4style.json")), ids=str)
def test_both_layouts_of_the_larger_references_are_the_same_model(path):
    values, old = (json.loads((path.parent / n).read_text()) for n in ("config.json", path.name))
    assert read_config(old) == read_config(values)


def test_the_older_layout_gives_the_logits_of_transformers(tmp_path):
    folder = shutil.copytree(OWN / "llama", tmp_path / "llama")  # llama3 scaling matters here
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(_version_4(values)))
    expected = np.load(folder / "reference.npz")
    logits = load_hf(folder)(expected["input_ids"])
    np.testing.assert_allclose(logits, expected["logits"], atol=5e-5, rtol=0)
