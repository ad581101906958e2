"""What remat policies compute twice, read from the compiled step, and that losses do not change."""

from __future__ import annotations

import numpy as np
import pytest

from parallelism.hlo import program_work
from tests.training.small import feed_of, initial_state, random_batch, small_setup
from training.compile import compile_train_step
from training.optimizer import hyperparameters

POLICIES = ("none", "dots", "full")


@pytest.fixture(scope="module")
def steps() -> dict[str, tuple[int, float]]:
    """FLOPs of the matrix products of one step, and its gradient norm, by policy."""
    return {remat: _one_step(remat) for remat in POLICIES}


def _one_step(remat: str) -> tuple[int, float]:
    setup = small_setup(f"model.remat={remat}")
    feed = feed_of(setup)
    step = compile_train_step(setup, feed).call
    flops = program_work(step.as_text(), unknown_trips=1).dot_flops
    numbers = hyperparameters(setup.config.optimizer, setup.config.optimizer.lr)
    _, metrics = step(initial_state(setup), feed(random_batch(setup)), numbers)
    return flops, float(metrics["grad_norm"])


def test_dots_computes_no_product_twice(steps: dict[str, tuple[int, float]]) -> None:
    assert steps["dots"][0] == steps["none"][0]


def test_full_computes_the_layers_again(steps: dict[str, tuple[int, float]]) -> None:
    assert steps["full"][0] > 1.2 * steps["none"][0]


def test_gradients_do_not_depend_on_the_policy(steps: dict[str, tuple[int, float]]) -> None:
    np.testing.assert_allclose([norm for _, norm in steps.values()], steps["none"][1], rtol=1e-5)
