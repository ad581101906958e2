"""Every family against the numbers of Hugging Face transformers, on one device and on meshes.

The project's own references (tools/make_references.py) are tests/model/references; a larger set
beside the repository, ../shared/hf_reference, is used as well where it is there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.hf.families import FAMILIES
from tests.model.reference_case import Case, compute

OWN = Path(__file__).parent / "references"
SHARED = Path(__file__).parents[3] / "shared" / "hf_reference"

ONE = {"data": 1}
SEQUENCE = {"fsdp": 2, "context": 4}
EXPERTS = {"expert": 2, "context": 4}
BOTH = {"expert": 2, "context": 2, "tensor": 2}


def _cases(root):
    return [Case(file.parent) for file in sorted(root.glob("*/reference.npz"))]


def _on_meshes():
    own = {case.path.name: case for case in _cases(OWN)}
    for case in [*own.values(), *_cases(SHARED)]:
        yield case, ONE
    for name in ("gemma3_text", "llama"):
        yield own[name], SEQUENCE
    yield own["gpt_oss"], BOTH
    yield own["deepseek_v3"], EXPERTS
    for case in _cases(SHARED):
        yield case, EXPERTS if case.model_config().moe.num_experts else SEQUENCE


def _name(value):
    if isinstance(value, Case):
        return f"{value.path.parent.name}-{value.path.name}"
    return "-".join(f"{axis}{size}" for axis, size in value.items())


def test_every_family_has_a_reference():
    assert {case.model_config().family for case in _cases(OWN)} == set(FAMILIES)


@pytest.mark.parametrize(("case", "sizes"), [*_on_meshes()], ids=_name)
def test_logits_losses_and_gradients_are_those_of_transformers(case, sizes):
    plain, packed = compute(case, sizes)
    z = case.numbers
    np.testing.assert_allclose(plain.logits, z["logits"], atol=5e-5, rtol=0)
    scored = z["packed_segment_ids"] > 0
    np.testing.assert_allclose(packed.logits[scored], z["logits_packed"][scored], atol=5e-5, rtol=0)
    assert plain.loss == pytest.approx(float(z["loss"]), abs=1e-5)
    assert packed.loss == pytest.approx(float(z["loss_packed"]), abs=1e-5)
    if "aux_loss" in z:
        assert plain.aux_loss == pytest.approx(float(z["aux_loss"]), rel=1e-5)
    gradients = {name[5:]: g for name, g in z.items() if name.startswith("grad/")}
    assert len(gradients) >= 3
    for name, expected in gradients.items():
        error = np.linalg.norm(plain.grads[name] - expected)
        assert error <= 1e-4 * np.linalg.norm(expected), name
