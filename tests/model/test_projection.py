"""A projection by its kernel and low-rank factors, used whole or applied, against NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from configs import load
from model.placement import Placement
from model.projection import Projection


def test_a_kernel_with_its_factors_is_the_same_whole_and_applied():
    config, draw = load([]).model, np.random.default_rng(0).standard_normal
    shape = (6, 4, 5)
    projection = Projection("BTR,RNH->BTNH", shape, (None, "heads", None), config, Placement())
    projection.add_factors(2, 0.5)
    arrays = {"kernel": draw(shape), "lora_down": draw((6, 2)), "lora_up": draw((2, 4, 5))}
    for name, array in arrays.items():
        getattr(projection, name).set_value(jnp.asarray(array, jnp.float32))
    whole = arrays["kernel"] + 0.5 * np.einsum("dr,rnh->dnh", *list(arrays.values())[1:])
    np.testing.assert_allclose(projection.whole_kernel(jnp.float32), whole, rtol=1e-5, atol=1e-6)
    x = draw((2, 3, 6))
    expected = np.einsum("btd,dnh->btnh", x, whole)
    found = projection(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
