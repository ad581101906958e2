"""Losses by pieces of the vocabulary are those of all logits, and so are their gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import load
from model import parameter_specs, with_parameters
from parallelism import init_sharded, make_mesh
from training.loss_pieces import Pieces, cut_vocabulary, model_losses
from training.setup import declare_run

TOKENS = (2, 8)
CASES = {
    "untied": {"tie_embeddings": False, "vocab_size": 24},
    "tied, uneven": {"tie_embeddings": True, "vocab_size": 23},
    "capped": {"tie_embeddings": False, "vocab_size": 24, "logit_soft_cap": 0.5},
}
MESHES = {"one device": {}, "tensor": {"tensor": 2, "fsdp": 2, "context": 2}}


def declared(fields, sizes):
    """A model, its parameters, the input of its head and targets."""
    config = load(["model.embed_dim=16", "model.num_layers=1", "model.mlp_dim=16"])
    mesh = make_mesh(sizes, jax.devices()[: math.prod(sizes.values())])
    config = replace(
        config,
        model=replace(config.model, **fields),
        mesh=replace(config.mesh, **dict(mesh.shape)),
    )
    model = declare_run(config, mesh).model
    parameters = init_sharded(parameter_specs(model), jax.random.key(0), mesh)
    draw = np.random.default_rng(0)
    x = jnp.asarray(4 * draw.standard_normal((*TOKENS, 16)), jnp.float32)
    return model, parameters, x, jnp.asarray(draw.integers(0, config.model.vocab_size, TOKENS))


def oracle(model, parameters, x, targets, gradient):
    """Losses and the gradient of the activations in NumPy float64."""
    head = parameters["embedding"].T if model.config.tie_embeddings else parameters["head"]
    x, head = np.asarray(x, np.float64), np.asarray(head, np.float64)
    logits, cap = x @ head, model.config.logit_soft_cap
    slope = 1.0 if cap is None else 1 - np.tanh(logits / cap) ** 2
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.eye(logits.shape[-1])[targets]
    losses = -np.log((share * chosen).sum(-1))
    by_logit = gradient[..., None] * (share - chosen) * slope
    return losses, by_logit @ head.T, np.einsum("btd,btv->dv", x, by_logit)


@pytest.mark.parametrize("limit", [4 * 16 * 5, 1])
@pytest.mark.parametrize("sizes", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_losses_and_gradients_are_those_of_an_oracle(fields, sizes, limit):
    model, parameters, x, targets = declared(fields, sizes)
    gradient = np.random.default_rng(1).standard_normal(TOKENS)

    @jax.jit
    def run(parameters, x):
        def losses(parameters, x):
            return model_losses(with_parameters(model, parameters), x, targets, limit)

        out, pull_back = jax.vjp(losses, parameters, x)
        return out, *pull_back(jnp.asarray(gradient, jnp.float32))

    losses, dparameters, dx = run(parameters, x)
    dhead = dparameters["embedding"].T if model.config.tie_embeddings else dparameters["head"]
    expected = oracle(model, parameters, x, np.asarray(targets), gradient)
    for ours, right in zip((losses, dx, dhead), expected, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (4 * 16 * 24, Pieces(1, 24, 1)),
        (4 * 16 * 24 - 1, Pieces(1, 24, 2)),
        (4 * 16 * 5, Pieces(1, 24, 6)),  # 5 would do, and does not divide
        (1, Pieces(1, 24, 24)),
    ],
)
def test_the_vocabulary_is_cut_evenly_into_pieces_that_fit(limit, expected):
    model, *_ = declared(CASES["untied"], {})
    assert cut_vocabulary(TOKENS, 24, model.placement, limit) == expected


def test_memory_falls_with_the_pieces():
    """A step whose logits are most of it: all 4,096 words at once, and an eighth of them."""

    def temporaries(limit):
        model, parameters, x, _ = declared({"vocab_size": 4096}, {})
        x, targets = jnp.zeros((8, 64, 16)), jnp.zeros((8, 64), jnp.int32)

        def loss(parameters, x):
            return model_losses(with_parameters(model, parameters), x, targets, limit).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(parameters, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole = 4 * 8 * 64 * 4096
    assert temporaries(whole) > whole
    assert temporaries(whole // 8) < whole / 2
