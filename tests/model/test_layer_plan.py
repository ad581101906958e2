"""Unlike layers: which parts each has, what is scanned, that scanning changes no value."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from configs import load
from configs.layer_pattern import parse_pattern, write_pattern
from configs.model_schema import MoEConfig
from model import build_model, parameter_specs, with_parameters
from model.layer_plan import layer_kinds, plan_layers
from parallelism import init_sharded, make_mesh
from tests.quick_compile import QUICK_COMPILE

SMALL = [
    "model.num_layers=4",
    "model.embed_dim=16",
    "model.mlp_dim=24",
    "model.num_heads=4",
    "model.num_kv_heads=2",
    "model.head_dim=4",
    "model.vocab_size=32",
    "data=synthetic",
]
EXPERTS = MoEConfig(num_experts=4, expert_dim=8, dense_layers=1, shared_dim=8)


def _segments(**changes):
    config = replace(load(SMALL).model, **changes)
    return [(s.first, len(s.kinds), s.repeats) for s in plan_layers(config)]


def test_patterns_read_and_write():
    assert parse_pattern("local*2, global") == ("local", "local", "global")
    assert write_pattern(parse_pattern("local*5,global") * 3 + ("local",) * 2) == "local*5,global"
    assert write_pattern(("global",) * 7) == "global"
    with pytest.raises(ValueError, match="globle is none of global, local"):
        parse_pattern("local,globle")


def test_rows_that_repeat_are_scanned_and_the_rest_follows():
    assert _segments() == [(0, 1, 4)]
    gemma3 = {"layer_pattern": "local*5,global", "window": 4, "num_layers": 26}
    assert _segments(**gemma3) == [(0, 6, 4), (24, 1, 2)]
    assert _segments(moe=EXPERTS, num_layers=61) == [(0, 1, 1), (1, 1, 60)]
    assert _segments(layer_pattern="global*3,global_nope", num_layers=36) == [(0, 4, 9)]
    assert _segments(scan_layers=False) == [(0, 4, 1)]


def test_kinds_say_what_each_layer_has():
    config = load([*SMALL, "model.layer_pattern=local,global_nope", "model.window=3"]).model
    kinds = layer_kinds(replace(config, moe=EXPERTS, rope_local_theta=100.0))
    assert [kind.window for kind in kinds] == [3, None, 3, None]
    assert [kind.rope for kind in kinds] == ["local", None, "local", None]
    assert [kind.sparse for kind in kinds] == [False, True, True, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_pattern": "local*2,global_nope", "window": 3, "num_layers": 7},
        {"moe": EXPERTS, "num_layers": 3},
    ],
)
def test_scanned_and_unrolled_layers_have_the_same_values(changes):
    outputs = []
    for scan in (True, False):
        config = replace(load(SMALL).model, **changes, scan_layers=scan)
        model = build_model(config, platform="cpu")
        mesh = make_mesh({}, jax.devices()[:1])
        parameters = init_sharded(parameter_specs(model), jax.random.key(3), mesh)
        tokens = np.arange(24).reshape(2, 12) % 32
        run = jax.jit(
            lambda p, t, model=model: with_parameters(model, p)(t), compiler_options=QUICK_COMPILE
        )
        outputs.append(np.asarray(run(parameters, tokens)))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-6)


def test_the_traced_program_does_not_grow_with_depth():
    sizes = []
    for depth in (12, 48):
        changes = [f"model.num_layers={depth}", "model.layer_pattern=local*5,global"]
        words = [word for word in SMALL if "num_layers" not in word]
        config = load([*words, *changes, "model.window=4"]).model
        model = build_model(config, platform="cpu")
        shapes = jax.tree.map(
            lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), parameter_specs(model)
        )
        tokens = jax.ShapeDtypeStruct((1, 8), "int32")
        lowered = jax.jit(lambda p, t, m=model: with_parameters(m, p)(t)).lower(shapes, tokens)
        sizes.append(len(lowered.as_text().splitlines()))
    assert sizes[0] == sizes[1]
