"""One optimizer step: accumulation, clipping, what decays, what happens when numbers go wrong."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.small import (
    feed_of,
    initial_state,
    placed,
    random_batch,
    small_setup,
    train_steps,
)
from training.compile import compile_train_step
from training.optimizer import clip, hyperparameters
from training.state import TrainState
from training.step import make_train_step

B1, B2, EPS = 0.9, 0.95, 1e-8


def _flat(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _step(setup: Any, batch: dict[str, np.ndarray]) -> tuple[TrainState, TrainState, dict]:
    before = jax.device_get(initial_state(setup))
    after, metrics = train_steps(setup, [batch])
    return before, jax.device_get(after), metrics[0]


def test_first_adamw_update_is_that_of_the_formula() -> None:
    setup = small_setup(
        "optimizer.lr=0.01", "optimizer.weight_decay=0.5", "optimizer.clip_norm=null"
    )
    before, after, metrics = _step(setup, random_batch(setup))
    old, new = _flat(before.parameters), _flat(after.parameters)
    first = _flat(after.optimizer)
    for path, value in old.items():
        moment = next(m for name, m in first.items() if "mu" in name and name.endswith(path))
        grad = moment.astype(np.float64) / (1 - B1)
        decay = 0.0 if "norm" in path else 0.5
        update = grad / (np.abs(grad) + EPS) + decay * value
        np.testing.assert_allclose(new[path], value - 0.01 * update, rtol=2e-5, atol=2e-6)
    squares = sum(
        np.sum((m.astype(np.float64) / (1 - B1)) ** 2) for n, m in first.items() if "mu" in n
    )
    assert metrics["grad_norm"] == pytest.approx(np.sqrt(squares), rel=1e-5)


def test_microbatches_of_unequal_weight_give_the_gradient_of_the_whole() -> None:
    whole, split = (small_setup(f"train.grad_accum={n}") for n in (1, 4))
    batch = random_batch(whole)
    batch["weights"] = batch["weights"] * (np.arange(8)[:, None] < 3)  # some rows score nothing
    _, one, _ = _step(whole, batch)
    _, four, _ = _step(split, batch)
    for path, value in _flat(one.optimizer).items():
        np.testing.assert_allclose(_flat(four.optimizer)[path], value, rtol=1e-4, atol=1e-7)


def test_clipping_scales_to_the_norm_and_leaves_small_gradients_alone() -> None:
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    clipped = clip(grads, np.float32(5.0), np.float32(1.0))
    np.testing.assert_allclose(clipped["a"], [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[0.8]], rtol=1e-6)
    np.testing.assert_array_equal(clip(grads, np.float32(5.0), np.float32(np.inf))["a"], grads["a"])


def test_a_batch_that_scores_nothing_changes_no_parameter() -> None:
    setup = small_setup()
    batch = random_batch(setup)
    batch["weights"] = np.zeros_like(batch["weights"])
    before, after, metrics = _step(setup, batch)
    assert metrics["loss"] == 0 and metrics["finite"]
    for path, value in _flat(before.parameters).items():
        np.testing.assert_array_equal(_flat(after.parameters)[path], value)


def test_a_loss_that_is_not_finite_changes_no_parameter_and_is_told() -> None:
    setup = small_setup()
    step = compile_train_step(setup, feed_of(setup)).call
    state = initial_state(setup)
    poisoned = state._replace(
        parameters={**state.parameters, "embedding": state.parameters["embedding"] * np.inf}
    )
    before = _flat(poisoned)
    numbers = hyperparameters(setup.config.optimizer, 0.1)
    after, metrics = step(poisoned, placed(setup, random_batch(setup)), numbers)
    assert not metrics["finite"]
    for path, value in _flat(after).items():
        if "step" not in path:
            np.testing.assert_array_equal(value, before[path])


@pytest.mark.parametrize("rule", ["lion", "adafactor", "muon", "sgd"])
def test_every_rule_lowers_the_loss_of_a_batch_seen_often(rule: str) -> None:
    setup = small_setup(f"optimizer={rule}", num_devices=2)
    batch = random_batch(setup)
    _, metrics = train_steps(setup, [batch] * 20)
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_moments_lie_like_their_parameters() -> None:
    setup = small_setup("mesh.context=4", "mesh.fsdp=2", num_devices=8)
    state, _ = train_steps(setup, [random_batch(setup)])
    expected = jax.tree.map(lambda leaf: leaf.sharding.spec, setup.abstract_state())
    assert jax.tree.map(lambda leaf: leaf.sharding.spec, state) == expected
    moments = _shardings(state.optimizer)
    for path, sharding in _shardings(state.parameters).items():
        assert all(s == sharding for name, s in moments.items() if name.endswith(path))
        if "norm" not in path:
            assert any(sharding.spec), path


def _shardings(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf.sharding for path, leaf in leaves}


@pytest.mark.parametrize("name", ["adamw", "lion", "sgd", "muon", "adafactor"])
def test_a_step_takes_the_state_that_a_step_gives(name: str) -> None:
    """Compiled once, with moments that are float32 whatever the parameters are."""
    setup = small_setup("model.param_dtype=bfloat16", f"optimizer.name={name}")
    before = setup.abstract_state()
    step = make_train_step(setup.model, setup.rule, setup.config.train)
    batch = {name: jnp.asarray(x) for name, x in random_batch(setup).items()}
    after, _ = jax.eval_shape(step, before, batch, hyperparameters(setup.config.optimizer, 0.1))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), before
    )
    moments = [x.dtype for x in jax.tree.leaves(after.optimizer) if x.ndim]
    assert moments and set(moments) == {jnp.dtype("float32")}


def test_many_microbatches_lose_nothing_of_a_gradient_in_bfloat16() -> None:
    """A bfloat16 sum of 512 equal gradients would stand still at 256 of them."""
    words = ("model.param_dtype=bfloat16", "model.num_layers=1", "data.seq_len=16")
    norms = {}
    for grad_accum in (1, 512):
        setup = small_setup(*words, "data.batch=512", f"train.grad_accum={grad_accum}")
        row = {name: x[:1] for name, x in random_batch(setup).items()}
        same = {name: np.repeat(x, 512, axis=0) for name, x in row.items()}
        norms[grad_accum] = float(train_steps(setup, [same])[1][0]["grad_norm"])
    assert norms[512] == pytest.approx(norms[1], rel=1e-2)


def test_an_indexer_that_is_trained_comes_to_choose_as_the_attention_does() -> None:
    latent = ("kv_rank=8", "query_rank=8", "nope_dim=4", "rope_dim=4", "value_dim=8")
    indexer = ("num_heads=4", "head_dim=8", "top_k=6", "loss=1")
    setup = small_setup(
        *(f"model.latent.{word}" for word in latent),
        *(f"model.indexer.{word}" for word in indexer),
        *("model.num_kv_heads=8", "model.num_layers=1", "optimizer.lr=0.01"),
    )
    _, metrics = train_steps(setup, [random_batch(setup)] * 20)
    losses = [float(values["index_loss"]) for values in metrics]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
