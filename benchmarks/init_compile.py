"""Seconds to compile an init: one graph for all parameters against a few programs, in two stages.

    python -m benchmarks.init_compile --target cpu8                  448 factors, 32 layers
    python -m benchmarks.init_compile --target v5p:4x4x8 --layers 8 32 64 --skip-single
    python -m benchmarks.init_compile --target cpu128 --tree adamw   state of an unrolled Llama-8B

The targets cpu<N> are simulated devices; any other is a TPU topology for libtpu's compiler (extra
`tpu-aot`), with no TPU needed. Seconds are those of tracing and compiling together, on the wall and
of CPU time, which tells more when the machine is busy; nothing is run. Two-stage compiles are
repeated and the median is given, the single graph is compiled once, and results are merged into
init_compile.json beside this script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax.sharding import Mesh

from benchmarks.measure import print_table, write_json
from parallelism import (
    DEFAULT_RULES,
    Constant,
    Normal,
    ParamSpec,
    Rules,
    TruncatedNormal,
    make_mesh,
    plan_init,
    simulate_cpu_devices,
)
from parallelism.topology import topology_devices

Row = dict[str, Any]

COLUMNS = (
    "target",
    "tree",
    "layers",
    "outputs",
    "programs",
    "two_stage_s",
    "two_stage_cpu_s",
    "single_graph_s",
    "single_graph_cpu_s",
    "ratio",
    "ratio_cpu",
)
MODEL_WIDTH, MLP_WIDTH, VOCAB, HEAD_DIM = 4096, 14336, 128256, 128
NUM_COMPONENTS = 4096
FACTOR_RULES = Rules({"component": ("data", "fsdp", "context", "tensor")})


def factor_specs(num_layers: int) -> Any:
    """V (d_in, C) and U (C, d_out) of the seven matrices of each layer of Llama-3.1-8B."""
    d, kv, f, c = MODEL_WIDTH, 1024, MLP_WIDTH, NUM_COMPONENTS
    sizes = {"q": (d, d), "k": (d, kv), "v": (d, kv), "o": (d, d)}
    sizes |= {"gate": (d, f), "up": (d, f), "down": (f, d)}

    def factors(d_in: int, d_out: int, layer: int) -> dict[str, ParamSpec]:
        draw_v, draw_u = Normal(d_in**-0.5), Normal(c**-0.5)
        return {
            "V": ParamSpec((d_in, c), "float32", draw_v, (None, "component"), layer),
            "U": ParamSpec((c, d_out), "float32", draw_u, ("component", None), layer),
        }

    return [
        {name: factors(*size, layer) for name, size in sizes.items()} for layer in range(num_layers)
    ]


def adamw_specs(num_layers: int) -> Any:
    """Parameters and both AdamW moments of an unrolled Llama-8B, and the step counter."""
    d, f, h = MODEL_WIDTH, MLP_WIDTH, HEAD_DIM
    matrices = {
        "query": ((d, 32, h), ("embed", "heads", "head_dim")),
        "key": ((d, 8, h), ("embed", "kv_heads", "head_dim")),
        "value": ((d, 8, h), ("embed", "kv_heads", "head_dim")),
        "out": ((32, h, d), ("heads", "head_dim", "embed")),
        "gate": ((d, f), ("embed", "mlp")),
        "up": ((d, f), ("embed", "mlp")),
        "down": ((f, d), ("mlp", "embed")),
    }

    def specs(matrix: Any, scale: Any) -> Any:
        def layer(index: int) -> Any:
            made = {n: ParamSpec(s, "float32", matrix, a, index) for n, (s, a) in matrices.items()}
            norms = ("attention_norm", "mlp_norm")
            return made | {n: ParamSpec((d,), "float32", scale, ("norm",), index) for n in norms}

        return {
            "embedding": ParamSpec((VOCAB, d), "float32", matrix, ("vocab", "embed")),
            "head": ParamSpec((d, VOCAB), "float32", matrix, ("embed", "vocab")),
            "norm": ParamSpec((d,), "float32", scale, ("norm",)),
            "layers": [layer(index) for index in range(num_layers)],
        }

    return {
        "parameters": specs(TruncatedNormal(0.02), Constant(1.0)),
        "mu": specs(Constant(0.0), Constant(0.0)),
        "nu": specs(Constant(0.0), Constant(0.0)),
        "step": ParamSpec((), "int32", Constant(0), ()),
    }


TREES: dict[str, tuple[Callable[[int], Any], Rules]] = {
    "factors": (factor_specs, FACTOR_RULES),
    "adamw": (adamw_specs, DEFAULT_RULES),
}


def target_mesh(target: str) -> Mesh:
    """All devices of a target on the fsdp axis: `cpu8`, or a TPU topology such as `v5p:4x4x8`."""
    if target.startswith("cpu"):
        simulate_cpu_devices(int(target.removeprefix("cpu")))
        return make_mesh({"fsdp": -1})
    return make_mesh({"fsdp": -1}, topology_devices(target))


def compile_once(specs: Any, mesh: Mesh, rules: Rules, **options: Any) -> tuple[float, float]:
    """Seconds to trace and compile an init: wall time and CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    plan_init(specs, mesh, rules, **options).compile()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(specs: Any, mesh: Mesh, rules: Rules, repeats: int, single_graph: bool) -> Row:
    """Both sides for one tree."""
    compile_once(specs, mesh, rules)  # the first compile in a process also loads the compiler
    runs = [compile_once(specs, mesh, rules) for _ in range(repeats)]
    wall, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
    row: Row = {
        "outputs": len(jax.tree.leaves(specs)),
        "programs": plan_init(specs, mesh, rules).num_programs,
        "two_stage_s": round(wall, 2),
        "two_stage_cpu_s": round(cpu, 2),
    }
    if single_graph:
        wall, cpu = compile_once(specs, mesh, rules, strategy="single_graph")
        row |= {"single_graph_s": round(wall, 1), "single_graph_cpu_s": round(cpu, 1)}
    return row


def keep(rows: list[Row], row: Row) -> Row:
    """Merges a row into those of earlier runs; what was not measured again stays."""
    where = ("target", "tree", "layers")
    same = [old for old in rows if all(old[name] == row[name] for name in where)]
    kept = {**(same[0] if same else {}), **row}
    if "single_graph_s" in kept:
        kept["ratio"] = round(kept["single_graph_s"] / kept["two_stage_s"], 1)
        kept["ratio_cpu"] = round(kept["single_graph_cpu_s"] / kept["two_stage_cpu_s"], 1)
    rows[:] = [old for old in rows if old not in same] + [kept]
    rows.sort(key=lambda old: [old[name] for name in where])
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    mesh, (make_specs, rules) = target_mesh(options.target), TREES[options.tree]
    rows = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    shown = []
    for layers in options.layers:
        single_graph = not options.skip_single
        row = measure(make_specs(layers), mesh, rules, options.repeats, single_graph)
        where = {"target": options.target, "tree": options.tree, "layers": layers}
        shown.append(keep(rows, where | row))
        write_json(options.json, {"rows": rows})
    print_table(shown, COLUMNS)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="cpu8", help="cpu8, cpu128, v5p:4x4x8, ...")
    parser.add_argument("--tree", choices=sorted(TREES), default="factors")
    parser.add_argument("--layers", type=int, nargs="+", default=[32])
    parser.add_argument("--repeats", type=int, default=5, help="two-stage compiles a depth")
    parser.add_argument("--skip-single", action="store_true", help="leave the slow side out")
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
