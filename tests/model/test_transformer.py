"""The model against a NumPy float64 Llama, on one device and over meshes, token by token."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from model import with_parameters
from tests.model import oracle
from tests.training.small import feed_of, initial_state, random_batch, small_setup
from training.loss import token_losses
from training.setup import Setup

# Weights large enough that attention is far from uniform and a wrong position shows.
LIVELY = ("model.init_std=0.3",)
MESHES = {
    "one device": (1, []),
    "context 4 x fsdp 2": (8, ["mesh.context=4", "mesh.fsdp=2"]),
    "tensor 2 x fsdp 4": (8, ["mesh.tensor=2", "mesh.fsdp=4"]),
    "context 3": (6, ["mesh.context=3", "mesh.fsdp=2"]),
    "striped": (4, ["mesh.context=4", "context_parallel.layout=striped"]),
    "contiguous": (4, ["mesh.context=4", "context_parallel.layout=contiguous"]),
    "folded around attention": (
        8,
        ["mesh.context=4", "mesh.fsdp=2", "context_parallel.reorder=attention"],
    ),
    "ring": (4, ["mesh.context=4", "context_parallel.strategy=ring"]),
    "ulysses": (4, ["mesh.context=4", "context_parallel.strategy=ulysses"]),
    "ulysses in contiguous order": (
        4,
        [
            "mesh.context=4",
            "context_parallel.strategy=ulysses",
            "context_parallel.reorder=attention",
        ],
    ),
}


def _losses(setup: Setup) -> np.ndarray:
    """Token losses [B, T] in plain order."""
    parameters = initial_state(setup).parameters
    batch = feed_of(setup)(random_batch(setup))

    @jax.jit
    def losses(parameters: Any, batch: Any) -> jax.Array:
        model = with_parameters(setup.model, parameters)
        logits = model(batch["tokens"], batch["positions"], batch["segment_ids"])
        return token_losses(logits, batch["targets"])

    return setup.layout.unfold(np.asarray(losses(parameters, batch)), 1)


@functools.cache
def _expected() -> np.ndarray:
    setup = small_setup(*LIVELY, "model.scan_layers=false")
    parameters = jax.device_get(initial_state(setup).parameters)
    rows = [
        oracle.token_losses(
            oracle.logits(parameters, setup.config.model, tokens, positions, segments), targets
        )
        for tokens, targets, _, positions, segments in zip(
            *random_batch(setup).values(), strict=True
        )
    ]
    return np.stack(rows)


@pytest.mark.parametrize("name", MESHES)
def test_token_losses_equal_the_float64_oracle(name: str) -> None:
    num_devices, overrides = MESHES[name]
    setup = small_setup(*LIVELY, *overrides, num_devices=num_devices)
    real = random_batch(setup)["segment_ids"] > 0
    np.testing.assert_allclose(_losses(setup)[real], _expected()[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", ["true", "false"])
def test_scanned_and_unrolled_layers_agree(tied: str) -> None:
    scanned, unrolled = (
        small_setup(f"model.scan_layers={scan}", f"model.tie_embeddings={tied}")
        for scan in ("true", "false")
    )
    np.testing.assert_allclose(_losses(scanned), _losses(unrolled), rtol=1e-6, atol=1e-6)


def test_scanned_and_unrolled_layers_are_drawn_bit_for_bit_alike() -> None:
    scanned, unrolled = (
        initial_state(small_setup(f"model.scan_layers={scan}")).parameters["layers"]
        for scan in ("true", "false")
    )
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(unrolled[n] for n in "01"))
    scanned_leaves = jax.tree.leaves(scanned)
    assert len(scanned_leaves) == len(jax.tree.leaves(stacked))
    for ours, theirs in zip(scanned_leaves, jax.tree.leaves(stacked), strict=True):
        np.testing.assert_array_equal(ours, theirs)
