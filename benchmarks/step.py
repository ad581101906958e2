"""Train-step speed against a plain hand-written JAX step of the same shape, in alternation.

    python -m benchmarks.step [--dtype bfloat16] [--rounds 5]

Prints tokens per second and per CPU-second of both, and their ratios; writes benchmarks/step.json.
The plain step is benchmarks/plain.py: dense masked attention, optax AdamW, one jit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.plain import plain_step
from configs import load
from training.compile import compile_train_step
from training.devices import start_devices
from training.feed import Feed
from training.optimizer import hyperparameters
from training.setup import open_setup
from training.start import new_state

SHAPE = [
    "model.embed_dim=256", "model.num_layers=8", "model.num_heads=8", "model.num_kv_heads=4",
    "model.head_dim=32", "model.mlp_dim=1024", "model.vocab_size=512", "data.source=synthetic",
    "data.seq_len=512", "data.batch=8", "compile_cache=null",
]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs both sides and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("overrides", nargs="*", help="for FoldText's side")
    options = parser.parse_args(arguments)
    sides = {
        "plain": _plain(options.dtype),
        "foldtext": _foldtext(options.dtype, options.overrides),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, step in sides.items():
            times[name].append(_timed(step))
    case = ", ".join([options.dtype, *options.overrides])
    medians = {name: _medians(rounds[1:]) for name, rounds in times.items()}
    _report(case, medians, options.json)


def _plain(dtype: str) -> Callable[[], Any]:
    config = load(SHAPE)
    tokens = jnp.asarray(_tokens(config.data.batch, config.data.seq_len, config.model.vocab_size))
    state, step = plain_step(config.model, jnp.dtype(dtype), config.data.seq_len)

    def once() -> Any:
        nonlocal state
        state, loss = step(state, tokens, jnp.roll(tokens, -1, axis=1))
        return loss

    return once


def _foldtext(dtype: str, overrides: list[str]) -> Callable[[], Any]:
    config = load([*SHAPE, f"model.compute_dtype={dtype}", *overrides])
    setup = open_setup(config, start_devices(config)[:1])
    feed = Feed(setup.mesh, setup.rules, setup.layout)
    step = compile_train_step(setup, feed).call
    state, _ = new_state(setup)
    data = config.data
    tokens = _tokens(data.batch, data.seq_len, config.model.vocab_size)
    ones = np.ones_like(tokens)
    batch = feed(
        {
            "tokens": tokens,
            "targets": np.roll(tokens, -1, axis=1),
            "weights": ones.astype(np.float32),
            "positions": np.broadcast_to(np.arange(data.seq_len, dtype=np.int32), tokens.shape),
            "segment_ids": ones,
        }
    )
    numbers = hyperparameters(config.optimizer, 1e-3)

    def once() -> Any:
        nonlocal state
        state, metrics = step(state, batch, numbers)
        return metrics["loss"]

    return once


def _tokens(rows: int, seq_len: int, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocab_size, (rows, seq_len), dtype=np.int32)


def _timed(step: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of one step."""
    cpu, wall = os.times(), time.perf_counter()
    jax.block_until_ready(step())
    used = os.times()
    return time.perf_counter() - wall, used.user + used.system - cpu.user - cpu.system


def _medians(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(r[0] for r in rounds), statistics.median(r[1] for r in rounds)


def _report(case: str, medians: dict[str, tuple[float, float]], path: Path) -> None:
    tokens = 8 * 512
    print(f"{case}; {os.cpu_count()} cores, {platform.machine()}, JAX {jax.__version__}")
    print(f"{'':10} {'step s':>8} {'CPU s':>8} {'tokens/s':>10} {'tokens/CPU-s':>13}")
    for name, (wall, cpu) in medians.items():
        print(f"{name:10} {wall:8.3f} {cpu:8.3f} {tokens / wall:10.0f} {tokens / cpu:13.0f}")
    ratios = [plain / ours for plain, ours in zip(*medians.values(), strict=True)]
    print(f"foldtext over plain: tokens/s {ratios[0]:.2f}, tokens/CPU-s {ratios[1]:.2f}")
    results = json.loads(path.read_text()) if path.exists() else {}
    results[case] = {
        "seconds": {name: m[0] for name, m in medians.items()},
        "cpu_seconds": {name: m[1] for name, m in medians.items()},
        "tokens_per_second_ratio": ratios[0],
        "tokens_per_cpu_second_ratio": ratios[1],
        "on": f"{os.cpu_count()} cores, {platform.machine()}, JAX {jax.__version__}",
    }
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
