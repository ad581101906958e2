"""Experts: every token is served whatever the load, on one device and on an expert axis."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import load
from configs.model_schema import MoEConfig
from model.grouped import Weights, grouped_product, serve
from model.mlp import gating
from model.moe import Load, balance_loss, correct_routers
from model.placement import Placement
from model.router import Routing
from parallelism import AttentionSetup, Layout, make_mesh
from tests.training.small import random_batch, small_setup, train_steps

E, D, F, K = 4, 6, 8, 2
LOADS = {
    "even": lambda rng, shape: rng.integers(0, E, shape),
    "one expert without tokens": lambda rng, shape: rng.integers(1, E, shape),
    "all on one expert": lambda rng, shape: np.full(shape, 2),
}


def _problem(choose):
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(4, 5, D)).astype(np.float32)
    experts = choose(rng, (4, 5, K)).astype(np.int32)
    weights = rng.uniform(size=experts.shape).astype(np.float32)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    kernels = Weights(
        draw(E, D, F), draw(E, D, F), draw(E, F, D), draw(E, F), draw(E, F), draw(E, D)
    )
    return tokens, experts, weights, kernels


def _oracle(tokens, experts, weights, kernels):
    """One token and one expert after the other, float64."""
    w = Weights(*(np.asarray(x, np.float64) for x in kernels))
    out = np.zeros(tokens.shape)
    for place in np.ndindex(experts.shape):
        x, e = tokens[place[:2]].astype(np.float64), experts[place]
        gate, up = x @ w.gate[e] + w.gate_bias[e], x @ w.up[e] + w.up_bias[e]
        y = (gate / (1 + np.exp(-gate)) * up) @ w.down[e] + w.down_bias[e]
        out[place[:2]] += weights[place] * y
    return out


@pytest.mark.parametrize("choose", LOADS.values(), ids=list(LOADS))
@pytest.mark.parametrize("sizes", [{"data": 1}, {"expert": 4}, {"expert": 2, "tensor": 2}])
def test_every_token_is_served_by_its_experts_whatever_the_load(choose, sizes):
    from model.expert_parallel import serve_sharded
    from model.experts import _BIAS_AXES, _KERNEL_AXES

    tokens, experts, weights, kernels = _problem(choose)
    expected = _oracle(tokens, experts, weights, kernels)
    routing = Routing(experts, weights, np.zeros((4, 5, E), np.float32))
    act = gating(load([]).model)
    mesh = make_mesh(sizes, jax.devices()[: int(np.prod(list(sizes.values())))])
    if mesh.size == 1:
        for platform in ("tpu", "cpu"):  # either form is right anywhere
            product = grouped_product(platform)
            run = jax.jit(lambda *args, product=product: serve(*args, act, product))
            found = run(tokens, routing, kernels)
            np.testing.assert_allclose(found, expected, atol=2e-5)
    else:
        placement = Placement(AttentionSetup(mesh=mesh, layout=Layout("contiguous", 1)))
        axes = _KERNEL_AXES | _BIAS_AXES
        found = jax.jit(
            lambda x, r, w: serve_sharded(x, r, w, axes=axes, gating=act, placement=placement)
        )(tokens, routing, kernels)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_balance_loss_is_the_number_of_experts_a_token_goes_to_when_the_load_is_even():
    even = Load(jnp.full((2, E), 6.0), jnp.full((2, E), 3.0), jnp.full(2, 12.0))
    assert float(balance_loss([even])) == pytest.approx(K)
    skewed = Load(jnp.array([24.0, 0, 0, 0]), jnp.array([12.0, 0, 0, 0]), jnp.asarray(12.0))
    assert float(balance_loss([skewed])) == pytest.approx(K * E)


def test_the_correction_moves_experts_towards_an_even_load():
    config = MoEConfig(num_experts=E, correction_bias=True, correction_rate=0.01)
    layer = {"moe": {"router": {"correction": jnp.zeros(E), "kernel": 1}, "experts": 2}}
    load = Load(jnp.array([10.0, 4, 4, 6]), jnp.zeros(E), jnp.asarray(12.0))
    parameters = {"embedding": 0, "layers": {"0": {"mlp": 5}, "1": layer}}
    after = correct_routers(config, parameters, [None, load])
    router = after["layers"]["1"]["moe"]["router"]
    np.testing.assert_allclose(router["correction"], [-0.01, 0.01, 0.01, 0.0])
    assert after["layers"]["0"] == {"mlp": 5}
    assert correct_routers(replace(config, correction_rate=0.0), parameters, [None, load]) is (
        parameters
    )


MOE = (
    "model.moe.num_experts=4",
    "model.moe.expert_dim=16",
    "model.moe.dense_layers=1",
    "model.moe.scoring=sigmoid",
    "model.moe.correction_bias=true",
    "model.moe.correction_rate=0.01",
    "model.moe.balance_loss=0.1",
    "model.init_std=0.3",
)


def test_training_with_experts_is_the_same_on_every_mesh():
    losses, corrections = [], []
    for words, num_devices in [
        ((), 1),
        (("mesh.expert=2", "mesh.context=2", "mesh.fsdp=2"), 8),
    ]:
        setup = small_setup(*MOE, *words, num_devices=num_devices)
        batches = [random_batch(setup, seed) for seed in range(2)]
        state, metrics = train_steps(setup, batches)
        losses.append([float(m["loss"]) for m in metrics])
        router = state.parameters["layers"]["1"]["moe"]["router"]
        corrections.append(np.asarray(router["correction"]))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(corrections[0], corrections[1], atol=1e-7)
    assert np.abs(corrections[0]).max() == pytest.approx(0.02)  # twice in one direction
