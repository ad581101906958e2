"""Products of rows with their experts' matrices on a CPU: in blocks, and by `jax.lax.ragged_dot`.

    python -m benchmarks.experts                    prints a table, writes experts.json
    python -m benchmarks.experts --rows 4096 --width 512

One product with its backward pass, float32, in milliseconds of processor time over all cores;
medians in alternation. `batched` is what nothing can beat: every expert has equally many rows, and
the product is one einsum. It does not apply to a load that is not even.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import median_seconds, print_table, write_json
from model.grouped import Product, grouped_product

LOADS = ("even", "random", "one expert")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write every case."""
    options = _options(arguments)
    rows = [case(options, num_experts, load) for num_experts in options.experts for load in LOADS]
    print_table(rows, list(rows[0]))
    shape = {"rows": options.rows, "width": options.width}
    write_json(options.json, {"shape": shape, "cases": rows})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2048, help="tokens times experts per token")
    parser.add_argument("--width", type=int, default=256, help="of rows and of results")
    parser.add_argument("--experts", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    return parser.parse_args(arguments)


def case(options: argparse.Namespace, num_experts: int, load: str) -> dict[str, Any]:
    """Times of one number of experts and one load."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(options.rows, options.width)), jnp.float32)
    shape = (num_experts, options.width, options.width)
    kernel = jnp.asarray(rng.normal(size=shape), jnp.float32)
    sizes = jnp.asarray(_sizes(rng, load, options.rows, num_experts), jnp.int32)
    products = {"blocks": grouped_product("cpu"), "ragged_dot": grouped_product("tpu")}
    if load == "even":
        products["batched"] = batched
    steps = {name: gradients(product) for name, product in products.items()}
    runs = {name: lambda step=step: step(x, kernel, sizes) for name, step in steps.items()}
    taken = median_seconds(runs, options.rounds, warm_up=1, clock=time.process_time)
    row: dict[str, Any] = {"experts": num_experts, "load": load}
    row |= {f"{name} ms": 1e3 * seconds for name, seconds in taken.items()}
    row["ragged_dot / blocks"] = taken["ragged_dot"] / taken["blocks"]
    if load == "even":
        row["blocks / batched"] = taken["blocks"] / taken["batched"]
    return row


def _sizes(rng: np.random.Generator, load: str, rows: int, num_experts: int) -> np.ndarray:
    """How many rows each expert has."""
    if load == "even":
        return np.full(num_experts, rows // num_experts)
    if load == "random":
        return rng.multinomial(rows, np.full(num_experts, 1 / num_experts))
    return np.eye(num_experts, dtype=int)[0] * rows


def batched(rows_MD: jax.Array, kernel_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """The product where all experts have equally many rows."""
    del sizes_E
    by_expert = rows_MD.reshape(kernel_EDF.shape[0], -1, rows_MD.shape[1])
    return jnp.einsum("emd,edf->emf", by_expert, kernel_EDF).reshape(rows_MD.shape[0], -1)


def gradients(product: Product) -> Callable[..., Any]:
    """A product with its backward pass, compiled."""

    def loss(x: jax.Array, kernel: jax.Array, sizes: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(product(x, kernel, sizes)))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


if __name__ == "__main__":
    main()
