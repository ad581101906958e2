"""The product of sorted rows with many matrices that is used on CPUs, and its gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.blocks import blocked_dot

D, F = 5, 3
SIZES = {
    "uneven, two experts without rows": [0, 200, 3, 0, 90],
    "all rows on one expert": [0, 0, 300, 0, 0],
    "blocks that end where their expert's rows do": [64, 0, 128, 8, 100],
    "no rows for any expert": [0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_rows_meet_the_matrix_of_their_expert_and_gradients_are_exact(sizes):
    rng = np.random.default_rng(0)
    rows, kernel, grad = (
        rng.normal(size=shape).astype(np.float32) for shape in [(300, D), (5, D, F), (300, F)]
    )
    served = sum(sizes)
    experts = np.repeat(np.arange(5), sizes)
    x, w, g = (a.astype(np.float64) for a in (rows, kernel, grad))
    expected = np.einsum("md,mdf->mf", x[:served], w[experts])
    expected_rows = np.zeros_like(x)
    expected_rows[:served] = np.einsum("mf,mdf->md", g[:served], w[experts])
    expected_kernel = np.zeros_like(w)
    np.add.at(expected_kernel, experts, np.einsum("md,mf->mdf", x[:served], g[:served]))

    product = jax.jit(lambda x, w: blocked_dot(x, w, jnp.array(sizes)))
    out, pull = jax.vjp(product, rows, kernel)
    of_rows, of_kernel = pull(jnp.asarray(grad))
    np.testing.assert_allclose(out[:served], expected, atol=1e-5)
    np.testing.assert_allclose(of_rows, expected_rows, atol=1e-5)
    np.testing.assert_allclose(of_kernel, expected_kernel, atol=5e-5)


def test_sums_over_many_rows_in_bfloat16_are_taken_in_float32():
    rows = jnp.full((4096, 1), 0.1, jnp.bfloat16)
    kernel = jnp.ones((1, 1, 1), jnp.bfloat16)
    product = jax.jit(lambda w: blocked_dot(rows, w, jnp.array([4096])))
    gradient = jax.vjp(product, kernel)[1](jnp.ones((4096, 1), jnp.bfloat16))[0]
    assert gradient.dtype == jnp.bfloat16
    assert float(gradient[0, 0, 0]) == pytest.approx(4096 * float(rows[0, 0]), rel=0.01)
