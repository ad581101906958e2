"""Decoding token by token with a cache gives the logits of a pass over the whole row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import load_hf, with_parameters
from model.decode import empty_cache, extend
from tests.model.test_references import OWN
from tests.quick_compile import QUICK_COMPILE


@pytest.mark.parametrize("family", sorted(path.name for path in OWN.iterdir()))
def test_cached_decoding_gives_the_logits_of_transformers_for_every_family(family):
    loaded = load_hf(OWN / family)
    expected = np.load(OWN / family / "reference.npz")
    tokens = jnp.asarray(expected["input_ids"])

    def advance(parameters, column, cache):
        return extend(with_parameters(loaded.model, parameters), column, cache)

    step = jax.jit(advance, compiler_options=QUICK_COMPILE)
    cache = empty_cache(loaded.model.config, len(tokens), tokens.shape[1], jnp.float32)
    found = []
    for position in range(tokens.shape[1]):
        logits, cache = step(loaded.parameters, tokens[:, position : position + 1], cache)
        found.append(logits[:, 0])
    found = np.stack(found, axis=1)
    np.testing.assert_allclose(found, expected["logits"], atol=5e-5, rtol=0)
    assert (found.argmax(-1) == expected["logits"].argmax(-1)).all()
