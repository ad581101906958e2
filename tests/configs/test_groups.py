"""The YAML groups: they set every key of the schema, no other, and the published shapes."""

import pytest

from configs import load
from configs.compose import HOME, compose, groups
from configs.fields import leaves, read
from configs.validate import resolve

OPTIONS = [(group, option) for group, options in groups(None).items() for option in options]


def _keys(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_the_default_config_sets_every_key_of_the_schema_and_no_other():
    assert sorted(_keys(compose([], None, "config"))) == sorted(leaves())


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_sets_every_key_and_only_legal_values(group, option, tmp_path):
    reads_files = group == "data" and option not in ("stdlib", "synthetic")
    config = load([f"{group}={option}", *([f"data.path={tmp_path}"] * reads_files)])
    if group != "experiment":
        resolve(config, 128 if option == "v5p_128" else 1)


@pytest.mark.parametrize("option", groups(None)["experiment"])
def test_every_experiment_opens_with_the_command_that_runs_it(option):
    package, command, *_ = (HOME / "experiment" / f"{option}.yaml").read_text().splitlines()
    assert package == "# @package _global_"
    assert command.startswith(f"# python train.py experiment={option}")


def test_experiments_change_what_they_say():
    config = load(["experiment=llama3_8b_128k", "mode=plan"])
    assert (config.model.name, config.data.seq_len, config.mesh.context) == (
        "llama3_8b",
        131072,
        16,
    )
    assert load(["experiment=long_context", "mesh.simulate=8"]).mesh.context == 4


# Parameters by hand: the shapes in table 3 of arXiv:2407.21783, the sums that Meta publishes.
@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama3_8b", 8_030_261_248),
        ("llama3_70b", 70_553_706_496),
        ("llama3_405b", 405_853_388_800),
        ("small_25m", 25.3e6),
        ("base_125m", 126e6),
        ("tiny", 1.82e6),
    ],
)
def test_a_model_has_the_published_number_of_parameters(model, parameters):
    m = load([f"model={model}"]).model
    attention = 2 * m.embed_dim * m.head_dim * (m.num_heads + m.num_kv_heads)
    layer = attention + 3 * m.embed_dim * m.mlp_dim + 2 * m.embed_dim
    tables = m.vocab_size * m.embed_dim * (1 if m.tie_embeddings else 2)
    total = m.num_layers * layer + tables + m.embed_dim
    assert (
        total == parameters if isinstance(parameters, int) else abs(total / parameters - 1) < 0.01
    )


def test_llama_3_1_stretches_its_rotary_frequencies_and_llama_3_does_not():
    scaling = load(["model=llama3_405b"]).model.rope_scaling
    assert (scaling.type, scaling.factor, scaling.original_seq_len) == ("llama3", 8.0, 8192)
    assert (scaling.low_freq_factor, scaling.high_freq_factor) == (1.0, 4.0)
    assert load(["model=llama3_8b"]).model.rope_scaling.type == "none"


@pytest.mark.parametrize(
    ("overrides", "warmup"),
    [
        ([], 15),
        (["train.steps=50"], 5),
        (["train.steps=5"], 0),
        (["train.steps=5", "schedule.total_steps=100"], 10),
        (["schedule.warmup_steps=3"], 3),
    ],
)
def test_the_warm_up_is_a_tenth_of_the_schedule_unless_set(overrides, warmup):
    assert load(overrides).schedule.warmup_steps == warmup


@pytest.mark.parametrize("group", ["optimizer", "schedule", "data"])
def test_an_option_selects_the_rule_of_its_name(group):
    for option in groups(None)[group]:
        tree = compose([f"{group}={option}"], None, "config")
        assert tree[group]["source" if group == "data" else "name"] == option


def test_the_default_keys_are_those_of_the_tiny_model():
    config = load([])
    assert (read(config, "model.vocab_size"), read(config, "model.embed_dim")) == (264, 192)
