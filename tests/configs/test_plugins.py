"""Launchers and sweepers that are not installed: the answer is the extra or the nearest name."""

import pytest

from configs.plugins import missing_plugin

HERE = "; Available options in 'hydra/launcher': basic; process"


@pytest.mark.parametrize(
    ("option", "answer"),
    [("joblib", "pip install -e '.[joblib]'"), ("submitit_slurm", "pip install -e '.[submitit]'"),
     ("jobli", "did you mean joblib? It takes basic, process, joblib, ray"),
     ("xyz", "there is no such option; it takes basic, process")],
)  # fmt: skip
def test_a_missing_plugin_is_answered(option, answer):
    said = missing_plugin(f"In 'hydra/config': Could not find 'hydra/launcher/{option}'{HERE}")
    assert said is not None and said.startswith(f"hydra/launcher={option}") and answer in said


def test_other_complaints_are_left_alone():
    assert missing_plugin("In 'config': Could not find 'model/huge'") is None
