"""Context-parallel attention: time, work, bytes moved and memory, per strategy and layout.

    python -m benchmarks.context_parallel                   all tables; writes context_parallel.json
    python -m benchmarks.context_parallel --only memory     time, memory, reorder or latent

A program here is two layers of nothing but attention, in a loop, with their backward pass; figures
are per layer, forward and backward together. `plain` is the other side: masked attention as one
writes it down in jax.numpy, over arrays that are sharded along the sequence, as XLA splits it up.

time      8 simulated devices, which share this machine's cores: so the sum of all ranks' work shows
          and not the slowest rank. What the slowest one does is in `pairs` and `balance`.
memory    temporary bytes per device, by XLA's plan of the compiled program; nothing runs.
reorder   context_parallel.reorder: the batch folded once, or queries, keys and values around each
          attention.
latent    DeepSeek-V3's heads (a quarter of them), forward and backward, compiled only: keys and
          values expanded before they travel, or the latents sent and expanded where they arrive.

FLOPs are those of matrix products, and bytes those that a rank takes in from others; both are
counted in the compiled program, loops as often as they run (parallelism/hlo.py).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.measure import median_seconds, print_table, write_json
from model.latent_keys import LatentKeys
from model.placement import Placement
from parallelism import AttentionMask, AttentionSetup, Layout, attention, make_mesh
from parallelism.attention.plan import balance, plan_attention
from parallelism.hlo import Work, program_work

STRATEGIES = ("all_gather", "ring", "ulysses")
LAYOUTS = ("zigzag", "striped", "contiguous")
NUM_LAYERS = 2
TIMED_LENGTH = 4096
TIMED_CP = 8
LENGTHS = (4096, 8192, 16384, 32768, 65536)
DEGREES = (1, 2, 4, 8)
ROUNDS = 5


class Heads(NamedTuple):
    """Sizes of one attention: query heads N, key/value heads K, head width H."""

    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 64


HEADS = Heads()
LATENT_HEADS, LATENT = 32, LatentKeys(rank=512, nope_dim=128)
ROPE_DIM, VALUE_DIM = 64, 128
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write what was asked for."""
    options = _options(arguments)
    jax.config.update("jax_num_cpu_devices", 8)
    tables = {
        "time": time_rows,
        "memory": memory_rows,
        "reorder": reorder_rows,
        "latent": latent_rows,
    }
    content = {}
    for name in tables if options.only is None else [options.only]:
        content[name] = tables[name](options)
        print(f"\n{name}")
        print_table(content[name], list(content[name][0]))
    write_json(options.json, {"shape": HEADS._asdict(), **content})
    print(f"\nwritten to {options.json}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["time", "memory", "reorder", "latent"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--length", type=int, default=TIMED_LENGTH, help="tokens of a timed row")
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    return parser.parse_args(arguments)


def time_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds, FLOPs, bytes and balance of every strategy and layout, and of plain."""
    length = options.length
    mesh = context_mesh(TIMED_CP)
    sides: dict[tuple[str, str], Attend] = {("plain", "contiguous"): plain}
    setups = {}
    for strategy, name in itertools.product(STRATEGIES, LAYOUTS):
        setup = AttentionSetup(mesh=mesh, layout=Layout(name, TIMED_CP), strategy=strategy)
        setups[strategy, name], sides[strategy, name] = setup, foldtext(setup)
    programs = {side: compiled(attend, mesh, length) for side, attend in sides.items()}
    x = jax.device_put(jnp.ones(row_shape(length)), row_sharding(mesh))
    runs = {str(side): lambda program=program: program(x) for side, program in programs.items()}
    taken = median_seconds(runs, options.rounds, warm_up=1)
    rows = []
    for side, program in programs.items():
        seconds = taken[str(side)] / NUM_LAYERS
        row = {"strategy": side[0], "layout": side[1], "ms": 1e3 * seconds}
        row["plain / this"] = taken[str(("plain", "contiguous"))] / taken[str(side)]
        row |= planned_figures(setups.get(side), length)
        rows.append(row | work_figures(program, TIMED_CP) | memory_figures(program))
    return rows


def memory_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Temporary bytes per device against the length of the sequence and the degree."""
    del options
    rows = []
    for strategy, length in itertools.product(STRATEGIES, LENGTHS):
        row: dict[str, Any] = {"strategy": strategy, "tokens": length}
        for cp in DEGREES:
            mesh = context_mesh(cp)
            setup = AttentionSetup(mesh=mesh, layout=Layout("zigzag", cp), strategy=strategy)
            program = compiled(foldtext(setup), mesh, length)
            row[f"cp={cp} MB"] = memory_figures(program)["temporary MB"]
        rows.append(row)
    return rows


def reorder_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What folding around each attention moves and costs over folding the batch once."""
    mesh = context_mesh(TIMED_CP)
    programs = {}
    for strategy, reorder in itertools.product(STRATEGIES, ("batch", "attention")):
        # Training does as much: under ulysses a contiguous model folds nothing.
        layout = "contiguous" if (strategy, reorder) == ("ulysses", "attention") else "zigzag"
        setup = AttentionSetup(mesh=mesh, layout=Layout(layout, TIMED_CP), strategy=strategy)
        attend = folded_around(setup) if reorder == "attention" else foldtext(setup)
        programs[strategy, reorder] = compiled(attend, mesh, options.length)
    x = jax.device_put(jnp.ones(row_shape(options.length)), row_sharding(mesh))
    runs = {str(side): lambda program=program: program(x) for side, program in programs.items()}
    taken = median_seconds(runs, options.rounds, warm_up=1)
    return [
        {"strategy": strategy, "reorder": reorder}
        | {"ms": 1e3 * taken[str((strategy, reorder))] / NUM_LAYERS}
        | work_figures(program, TIMED_CP)
        | permute_figures(program)
        for (strategy, reorder), program in programs.items()
    ]


def latent_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Bytes and memory of latent attention, by what travels; float32."""
    mesh, length = context_mesh(TIMED_CP), options.length
    token = NamedSharding(mesh, P(None, "context"))
    shapes = {
        "query": (1, length, LATENT_HEADS, LATENT.nope_dim + ROPE_DIM),
        "narrow": (1, length, 1, LATENT.rank + ROPE_DIM),
        "weights": (LATENT.rank, LATENT_HEADS, LATENT.nope_dim + VALUE_DIM),
    }
    inputs = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=None if name == "weights" else token)
        for name, shape in shapes.items()
    ]
    rows = []
    for strategy, travels in itertools.product(STRATEGIES, ("keys", "latents")):
        setup = AttentionSetup(mesh=mesh, layout=Layout("zigzag", TIMED_CP), strategy=strategy)
        loss = functools.partial(latent_loss, setup, travels == "latents")
        program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*inputs).compile()
        # How many query blocks meet a block of latents is known to the plan, not to the compiler;
        # those loops exchange nothing.
        work = program_work(program.as_text() or "", unknown_trips=0)
        row = {"strategy": strategy, "travels": travels, "MB moved": moved(work, TIMED_CP) / 1e6}
        rows.append(row | memory_figures(program))
    return rows


def latent_loss(
    setup: AttentionSetup, narrow_travels: bool, query: jax.Array, narrow: jax.Array, up: jax.Array
) -> jax.Array:
    """A scalar of latent attention."""
    rule: dict[str, Any] = {"mask": AttentionMask(), "setup": setup}
    if narrow_travels:
        out = attention(query, narrow, None, expand=LATENT, weights=up, **rule)
    else:
        out = attention(query, *LATENT(narrow, up), **rule)
    return out.astype(jnp.float32).sum()


def foldtext(setup: AttentionSetup) -> Attend:
    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return attention(query, key, value, mask=AttentionMask(), setup=setup)

    return attend


def folded_around(setup: AttentionSetup) -> Attend:
    """As a contiguous model calls it: folded just before, unfolded just after."""
    place, attend = Placement(attention=setup, reorder="attention"), foldtext(setup)
    axes = ("batch", "sequence", "heads", None)

    def folding(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        folded = (place.fold(x, *axes) for x in (query, key, value))
        return place.unfold(attend(*folded), *axes)

    return folding


def plain(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    batch, length, num_heads, width = query.shape
    grouped = query.reshape(batch, length, key.shape[2], -1, width)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, key) / width**0.5
    scores = jnp.where(jnp.tri(length, dtype=bool), scores, -1e30)
    out = jnp.einsum("bkgts,bskh->btkgh", jax.nn.softmax(scores, axis=-1), value)
    return out.reshape(batch, length, num_heads, -1)


def compiled(attend: Attend, mesh: Mesh, length: int) -> jax.stages.Compiled:
    """The gradient of some layers of attention by the queries, compiled."""
    sharding = row_sharding(mesh)

    def loss(x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            key = x[:, :, : HEADS.num_kv_heads]
            out = attend(x, key, 0.5 * key)
            return jax.lax.with_sharding_constraint(out, sharding), None

        return jax.lax.scan(layer, x, None, length=NUM_LAYERS)[0].sum()

    x = jax.ShapeDtypeStruct(row_shape(length), jnp.float32, sharding=sharding)
    return jax.jit(jax.grad(loss), out_shardings=sharding).lower(x).compile()


def work_figures(program: jax.stages.Compiled, cp: int) -> dict[str, Any]:
    """FLOPs and bytes of one rank in one layer."""
    try:
        work = program_work(program.as_text() or "")
    except ValueError:  # ranks have unequal numbers of pairs, so no loop has a fixed length
        work = program_work(program.as_text() or "", unknown_trips=0)
        return {"GFLOPs": None, "MB moved": moved(work, cp) / NUM_LAYERS / 1e6}
    return {
        "GFLOPs": work.dot_flops / NUM_LAYERS / 1e9,
        "MB moved": moved(work, cp) / NUM_LAYERS / 1e6,
    }


def permute_figures(program: jax.stages.Compiled) -> dict[str, float]:
    """Collective-permutes of one rank in one layer, and what they move."""
    work = program_work(program.as_text() or "", unknown_trips=0)
    kind = "collective-permute"
    return {
        "permutes": work.collectives[kind] / NUM_LAYERS,
        "MB by permutes": work.collective_bytes[kind] / NUM_LAYERS / 1e6,
    }


def moved(work: Work, cp: int) -> float:
    """Bytes that a rank takes in from others."""
    others = (cp - 1) / cp
    shares = {"all-gather": others, "all-to-all": others, "all-reduce": 2 * others}
    shares |= {"reduce-scatter": cp - 1, "collective-permute": 1}
    return sum(shares[kind] * count for kind, count in work.collective_bytes.items())


def planned_figures(setup: AttentionSetup | None, length: int) -> dict[str, Any]:
    """Token pairs that the busiest rank computes, and how evenly they are shared."""
    if setup is None:
        return {"million pairs": length**2 / TIMED_CP / 1e6, "balance": 1.0}
    if setup.exchanges_heads:
        return {"million pairs": None, "balance": 1.0}
    chunks = setup.layout.chunks(length)
    plan = plan_attention(chunks, chunks, AttentionMask(), setup.block_size, setup.strategy)
    pairs = plan.executed_pairs
    return {"million pairs": pairs.max() / 1e6, "balance": balance(pairs)}


def memory_figures(program: jax.stages.Compiled) -> dict[str, float]:
    """Megabytes of temporaries on one device."""
    memory: Any = program.memory_analysis()
    return {"temporary MB": memory.temp_size_in_bytes / 1e6}


def row_shape(length: int) -> tuple[int, ...]:
    return 1, length, HEADS.num_heads, HEADS.head_dim


def row_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P(None, "context"))


def context_mesh(cp: int) -> Mesh:
    return make_mesh({"context": cp}, jax.devices()[:cp])


if __name__ == "__main__":
    main()
