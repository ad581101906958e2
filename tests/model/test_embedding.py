"""The gradient of the embedding table, against sums in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from model.embedding import look_up
from model.placement import Placement

VOCAB, WIDTH, TOKENS = 5, 3, 4096


def test_a_frequent_tokens_gradients_are_summed_in_full_in_bfloat16() -> None:
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(VOCAB, WIDTH)), jnp.float32)
    tokens = jnp.asarray(rng.choice(VOCAB, p=[0.9, 0.05, 0.05, 0, 0], size=(1, TOKENS)), jnp.int32)
    weight = rng.uniform(0.5, 1.5, (1, TOKENS, WIDTH)).astype(jnp.bfloat16)

    def total(table: jax.Array) -> jax.Array:
        rows = look_up(table, tokens, Placement(), jnp.dtype(jnp.bfloat16))
        assert rows.dtype == jnp.bfloat16
        return jnp.sum(rows.astype(jnp.float32) * weight.astype(jnp.float32))

    expected = np.zeros((VOCAB, WIDTH))
    np.add.at(expected, np.asarray(tokens)[0], weight[0].astype(np.float64))
    np.testing.assert_allclose(jax.grad(total)(table), expected, rtol=1e-6)
