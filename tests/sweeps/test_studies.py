"""experiment/ files that are sweeps: what they vary, and that each of their jobs is accepted."""

import itertools

import pytest
import yaml

from configs import load
from configs.compose import HOME

STUDIES = ("lr_sweep", "cp_comparison", "scaling_ladder")


@pytest.mark.parametrize("study", STUDIES)
def test_every_job_of_a_study_is_accepted(study):
    tree = yaml.safe_load((HOME / "experiment" / f"{study}.yaml").read_text())
    params = tree["hydra"]["sweeper"]["params"]
    options = [[f"{key}={value}" for value in values.split(",")] for key, values in params.items()]
    for words in itertools.product(*options):
        assert load([f"experiment={study}", *words]).mode == "train"


def test_the_ladder_sees_twenty_tokens_per_parameter():
    config = load(["experiment=scaling_ladder", "model.embed_dim=64"])
    model = config.model
    assert (model.num_layers, model.num_heads, model.mlp_dim) == (4, 8, 192)
    # 4 layers of 4 * 64 * 64 for attention and 3 * 64 * 192 for the MLP; a table of 264 * 64
    parameters = 4 * (4 * 64 * 64 + 3 * 64 * 192) + 264 * 64
    assert config.train.steps == round(20 * parameters / (32 * 128))
