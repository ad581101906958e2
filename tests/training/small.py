"""A small run to test with: every dimension divides over eight devices in all the ways tested."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from configs import Config, load
from training.compile import compile_train_step
from training.feed import Feed
from training.optimizer import hyperparameters
from training.setup import Setup, open_setup
from training.start import new_state
from training.state import TrainState
from training.step import Batch

# Programs that several runs need, compiled once; it goes when the tests end.
COMPILE_CACHE = tempfile.TemporaryDirectory(prefix="foldtext-tests-")
SMALL = (
    "model.num_layers=2", "model.embed_dim=48", "model.mlp_dim=64", "model.num_heads=8",
    "model.num_kv_heads=4", "model.head_dim=8", "data=synthetic", "data.seq_len=48",
    "data.batch=8", "model.vocab_size=64", "attention.block_size=8", "schedule.warmup_steps=2",
    f"compile_cache={COMPILE_CACHE.name}", "train.steps=20",
)  # fmt: skip


def small_config(*overrides: str) -> Config:
    """The small run with overrides; the later of two wins."""
    given = {word.split("=", 1)[0] for word in overrides}
    return load([*(word for word in SMALL if word.split("=", 1)[0] not in given), *overrides])


def small_setup(*overrides: str, num_devices: int = 1) -> Setup:
    """The small run declared on the first `num_devices` simulated devices."""
    return open_setup(small_config(*overrides), jax.devices()[:num_devices])


def feed_of(setup: Setup) -> Feed:
    """The feed of a declared run."""
    return Feed(setup.mesh, setup.rules, setup.layout)


def random_batch(setup: Setup, seed: int = 0) -> dict[str, np.ndarray]:
    """A host batch [B, T] of two packed documents and padding, in plain order."""
    data, vocab_size = setup.config.data, setup.config.model.vocab_size
    rng, shape = np.random.default_rng(seed), (data.batch, data.seq_len)
    first, end = data.seq_len // 3, data.seq_len - 5
    slots = np.arange(data.seq_len)
    segments = np.where(slots < first, 1, np.where(slots < end, 2, 0))
    positions = np.where(slots < first, slots, np.where(slots < end, slots - first, 0))
    weights = (slots < end - 1) & (slots != first - 1)
    return {
        "tokens": rng.integers(0, vocab_size, shape, dtype=np.int32),
        "targets": rng.integers(0, vocab_size, shape, dtype=np.int32),
        "weights": np.broadcast_to(weights.astype(np.float32), shape),
        "positions": np.broadcast_to(positions.astype(np.int32), shape),
        "segment_ids": np.broadcast_to(segments.astype(np.int32), shape),
    }


def initial_state(setup: Setup) -> TrainState:
    """The run's first state, drawn once on one device and laid out on the setup's mesh."""
    plain = small_config("run.dir=/nowhere")
    config = replace(
        plain,
        model=setup.config.model,
        adapter=setup.config.adapter,
        optimizer=setup.config.optimizer,
        run=plain.run,
    )
    return jax.tree.map(
        lambda x, like: jax.device_put(x, like.sharding), _drawn(config), setup.abstract_state()
    )


@functools.cache
def _drawn(config: Config) -> TrainState:
    return jax.device_get(new_state(open_setup(config, jax.devices()[:1]))[0])


def train_steps(setup: Setup, batches: list[dict[str, np.ndarray]]) -> tuple[Any, list[dict]]:
    """Trains from the initial state, one step a batch; returns the state and host metrics."""
    feed, step = feed_of(setup), compile_train_step(setup, feed_of(setup)).call
    state = initial_state(setup)
    numbers = hyperparameters(setup.config.optimizer, setup.config.optimizer.lr)
    metrics = []
    for batch in batches:
        state, values = step(state, feed(batch), numbers)
        metrics.append(jax.device_get(values))
    return state, metrics


def placed(setup: Setup, batch: dict[str, np.ndarray]) -> Batch:
    """A host batch on the setup's mesh."""
    return feed_of(setup)(batch)
