"""Exported folders load in transformers with equal logits; collected where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from model import load_hf, save_hf
from tests.model.test_references import OWN


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted(path.name for path in OWN.iterdir()))
def test_transformers_loads_an_export_and_computes_the_same_logits(family, tmp_path):
    save_hf(load_hf(OWN / family), tmp_path)
    model, info = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = np.load(OWN / family / "reference.npz")
    with torch.no_grad():
        logits = model(torch.tensor(expected["input_ids"], dtype=torch.int64)).logits
    np.testing.assert_allclose(logits.numpy(), expected["logits"], atol=5e-5, rtol=0)
