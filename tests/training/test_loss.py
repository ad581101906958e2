"""Cross entropy against NumPy float64, and how weights count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model import oracle
from training.loss import token_losses, weighted_sum


def test_losses_of_bfloat16_logits_are_float32_and_exact() -> None:
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(1, 6, 50_000)) * 3, jnp.bfloat16)
    targets = rng.integers(0, 50_000, (1, 6))
    losses = jax.jit(token_losses)(logits, jnp.asarray(targets))
    expected = oracle.token_losses(np.asarray(logits[0], np.float64), targets[0])
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses[0], expected, rtol=1e-5)


def test_extreme_logits_stay_finite() -> None:
    logits = jnp.asarray([[[3e4, -3e4, 0.0], [-3e4, -3e4, -3e4]]])
    losses = token_losses(logits, jnp.asarray([[1, 2]]))
    np.testing.assert_allclose(losses, [[6e4, np.log(3)]], rtol=1e-6)


def test_weight_zero_never_counts_even_where_the_loss_is_not_finite() -> None:
    losses = jnp.asarray([[1.0, jnp.inf, 3.0, jnp.nan]])
    total, weight = weighted_sum(losses, jnp.asarray([[1, 0, 1, 0]]))
    assert (float(total), float(weight)) == (4.0, 2.0)


def test_the_target_is_not_gathered() -> None:
    text = jax.jit(token_losses).lower(jnp.zeros((2, 8, 16)), jnp.zeros((2, 8), int)).as_text()
    assert "gather" not in text


@pytest.mark.parametrize("target", [0, 255])
def test_uniform_logits_cost_the_log_of_the_vocabulary(target: int) -> None:
    losses = token_losses(jnp.zeros((1, 1, 256)), jnp.full((1, 1), target))
    assert float(losses[0, 0]) == pytest.approx(np.log(256))
