"""Steps compiled once, ahead of the loop; the executable that is timed is the one that runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from training.feed import Feed
from training.optimizer import hyperparameters
from training.setup import Setup
from training.step import make_eval_step, make_train_step


class Compiled(NamedTuple):
    """An executable and the wall seconds that tracing and compiling took."""

    call: Callable[..., Any]
    seconds: float


def compile_train_step(setup: Setup, feed: Feed) -> Compiled:
    """Compiles (state, batch, numbers) -> (state, metrics); the state's buffers are donated."""
    step = make_train_step(setup.model, setup.rule, setup.config.train, setup.layer_stats)
    state = setup.abstract_state()
    replicated = NamedSharding(setup.mesh, PartitionSpec())
    jitted = jax.jit(
        step,
        donate_argnums=0,
        out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, state), replicated),
    )
    optimizer = setup.config.optimizer
    numbers = {
        name: jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated)
        for name in hyperparameters(optimizer, optimizer.lr)
    }
    return _compile(jitted, state, abstract_batch(setup, feed), numbers)


def compile_eval_step(setup: Setup, feed: Feed) -> Compiled:
    """Compiles (parameters, batch) -> (sum of token losses, scored tokens)."""
    step = make_eval_step(setup.model, setup.config.train)
    jitted = jax.jit(step, out_shardings=NamedSharding(setup.mesh, PartitionSpec()))
    return _compile(jitted, setup.abstract_state().parameters, abstract_batch(setup, feed))


def abstract_batch(setup: Setup, feed: Feed) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of a global batch [B, T]."""
    data, sharding = setup.config.data, feed.sharding()
    dtypes = {"tokens": "int32", "targets": "int32", "weights": "float32"}
    dtypes |= {"positions": "int32", "segment_ids": "int32"}
    return {
        name: jax.ShapeDtypeStruct((data.batch, data.seq_len), dtype, sharding=sharding)
        for name, dtype in dtypes.items()
    }


def _compile(jitted: Any, *arguments: Any) -> Compiled:
    start = time.perf_counter()
    executable = jitted.lower(*arguments).compile()
    return Compiled(executable, time.perf_counter() - start)
