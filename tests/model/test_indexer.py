"""An indexer that is trained learns from its own loss, and the rest of the model from the other."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.model.reference_case import Case, declared
from tests.model.test_references import OWN
from tests.quick_compile import QUICK_COMPILE
from training.feed import Feed
from training.step import objective


@dataclasses.dataclass(frozen=True)
class Indexed(Case):
    """The reference of DeepSeek-V3.2, whose indexer is trained."""

    loss: float = 0.0
    dtype: str = "float32"

    def model_config(self, config_json="config.json"):
        config = super().model_config(config_json)
        indexer = dataclasses.replace(config.indexer, loss=self.loss)
        return dataclasses.replace(config, indexer=indexer, compute_dtype=self.dtype)


@functools.cache
def measured(loss, dtype="float32", **sizes):
    """Loss of the index of a packed batch; gradients of the indexer and of all else, by name."""
    case = Indexed(OWN / "deepseek_v32", loss, dtype)
    setup, parameters = declared(case, sizes or {"data": 1})
    batch = Feed(setup.mesh, setup.rules, setup.layout)(case.batches()[1])

    @functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
    def run(parameters, batch):
        def value(parameters):
            return objective(setup.model, parameters, batch, 2**30)

        (_, sums), found = jax.value_and_grad(value, has_aux=True)(parameters)
        return sums.index_loss, found

    index_loss, found = jax.device_get(run(parameters, batch))
    named = {jax.tree_util.keystr(path): g for path, g in jax.tree.leaves_with_path(found)}
    indexer = {name: g for name, g in named.items() if "indexer" in name}
    return index_loss, indexer, {name: g for name, g in named.items() if name not in indexer}


def assert_close(gradients, expected):
    for name, right in expected.items():
        scale = max(np.abs(right).max(), 1e-9)
        np.testing.assert_allclose(gradients[name] / scale, right / scale, atol=1e-5, err_msg=name)


def test_the_two_losses_do_not_see_each_others_parameters():
    none, frozen, rest = measured(0.0)
    index_loss, indexer, rest_beside_it = measured(2.0)
    assert none is None and index_loss > 0
    assert not any(g.any() for g in frozen.values())
    assert len(indexer) >= 5 and all(g.any() for g in indexer.values())
    assert_close(rest_beside_it, rest)


def test_the_loss_is_that_of_every_mesh():
    index_loss, indexer, _ = measured(2.0)
    other_loss, others, _ = measured(2.0, context=2, tensor=2, fsdp=2)
    np.testing.assert_allclose(other_loss, index_loss, rtol=1e-6)
    assert_close(others, indexer)


def test_an_indexer_learns_in_bfloat16():
    index_loss, indexer, _ = measured(2.0)
    other_loss, others, _ = measured(2.0, "bfloat16", context=2)
    assert other_loss == pytest.approx(index_loss, rel=0.05)
    assert all(np.isfinite(g).all() and g.any() for g in others.values())
    assert others.keys() == indexer.keys()
