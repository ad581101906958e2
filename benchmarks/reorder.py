"""Reordering a sequence for zigzag, in three forms: gather, reshape and FoldText's own.

    python -m benchmarks.reorder                    everything; prints tables, writes reorder.json
    python -m benchmarks.reorder --only tpu --form foldtext --json out.json

`gather` takes whole chunks in their new order (jnp.take). `reshape` is MaxText's published form,
written afresh from its description: split the chunks into halves, reverse the second, stack,
reshape; back: take every other chunk, reverse the odd ones, concatenate. `foldtext` is
reorder_sequence. Two placements: the whole array on one device, and sharded along the sequence over
the context axis.

The CPU part times them in alternation, on 1 and on 8 simulated devices. The TPU part compiles
bfloat16 [1, 131072, 8, 128] for v5p with libtpu (extra tpu-aot) and reads XLA's own figures, per
chip; nothing runs there.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from benchmarks.measure import compiled_figures, median_seconds, print_table, write_json
from parallelism import Layout, reorder_sequence
from parallelism.topology import topology_devices

Form = Callable[[jax.Array, int, bool, str | None], jax.Array]

TPU_SHAPE = (1, 131072, 8, 128)
TPU_TOPOLOGIES = {4: "v5p:2x2x1", 16: "v5p:4x4x1", 128: "v5p:4x4x8"}
CPU_SHAPE = (1, 32768, 8, 64)
CPU_SIZES = {"one device": (4, 16), "sharded": (8,)}
ROUNDS = 15


def gather(x: jax.Array, cp: int, back: bool, mesh_axis: str | None) -> jax.Array:
    layout = Layout("zigzag", cp)
    order = layout.inverse(2 * cp) if back else layout.permutation(2 * cp)
    return jnp.take(in_chunks(x, cp), order, axis=1).reshape(x.shape)


def reshape(x: jax.Array, cp: int, back: bool, mesh_axis: str | None) -> jax.Array:
    chunks = in_chunks(x, cp)
    if back:
        return jnp.concatenate([chunks[:, ::2], chunks[:, 1::2][:, ::-1]], axis=1).reshape(x.shape)
    head, tail = chunks[:, :cp], chunks[:, cp:][:, ::-1]
    return jnp.stack([head, tail], axis=2).reshape(x.shape)


def in_chunks(x: jax.Array, cp: int) -> jax.Array:
    """[B, S, ...] -> [B, 2*cp, S/(2*cp), ...]"""
    return x.reshape(x.shape[0], 2 * cp, -1, *x.shape[2:])


def foldtext(x: jax.Array, cp: int, back: bool, mesh_axis: str | None) -> jax.Array:
    return reorder_sequence(x, cp, to_contiguous=back, mesh_axis=mesh_axis)


FORMS: dict[str, Form] = {"gather": gather, "reshape": reshape, "foldtext": foldtext}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    forms = {name: FORMS[name] for name in options.form}
    content: dict[str, Any] = {}
    if options.only in {None, "cpu"}:
        jax.config.update("jax_num_cpu_devices", 8)
        content["cpu"] = cpu_rows(forms)
        print(f"\nCPU, float32 {list(CPU_SHAPE)}, median of {ROUNDS}, milliseconds")
        print_table(content["cpu"], list(content["cpu"][0]))
    if options.only == "tpu" or (options.only is None and importlib.util.find_spec("libtpu")):
        content["tpu"] = tpu_rows(forms)
        print(f"\nTPU v5p, bfloat16 {list(TPU_SHAPE)}, per chip by XLA's count; passes: per array")
        print_table(content["tpu"], list(content["tpu"][0]))
    elif options.only is None:
        print("\nTPU: left out, libtpu is not installed (pip install 'foldtext[tpu-aot]')")
    write_json(options.json, content)
    print(f"\nwritten to {options.json}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["cpu", "tpu"])
    parser.add_argument("--form", action="append", choices=list(FORMS))
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args(arguments)
    options.form = options.form or list(FORMS)
    return options


def cpu_rows(forms: dict[str, Form]) -> list[dict[str, Any]]:
    """Milliseconds of every form, and how many times FoldText's they take."""
    rows = []
    host = np.random.default_rng(0).normal(size=CPU_SHAPE).astype(np.float32)
    for placement, sizes in CPU_SIZES.items():
        for cp in sizes:
            mesh = context_mesh(jax.devices()[:cp]) if placement == "sharded" else None
            x = jax.device_put(host, sharding(mesh, jax.devices()[0]))
            for back in (False, True):
                programs = {
                    name: compiled_form(form, x, cp, back, mesh) for name, form in forms.items()
                }
                runs = {name: functools.partial(program, x) for name, program in programs.items()}
                taken = median_seconds(runs, ROUNDS)
                row = {"placement": placement, "cp": cp, "direction": direction(back)}
                row |= {f"{name} ms": 1e3 * seconds for name, seconds in taken.items()}
                if "foldtext" in taken:
                    ratios = {n: t / taken["foldtext"] for n, t in taken.items() if n != "foldtext"}
                    row |= {f"{name} / foldtext": ratio for name, ratio in ratios.items()}
                rows.append(row)
    return rows


def tpu_rows(forms: dict[str, Form]) -> list[dict[str, Any]]:
    """Bytes accessed, temporaries and collectives of every form, compiled for TPU v5p."""
    rows = []
    for placement in ("one device", "sharded"):
        for cp, topology in TPU_TOPOLOGIES.items():
            devices = topology_devices(topology)
            mesh = context_mesh(devices) if placement == "sharded" else None
            place = sharding(mesh, devices[0])
            x = jax.ShapeDtypeStruct(TPU_SHAPE, jnp.bfloat16, sharding=place)
            array = 2 * int(np.prod(TPU_SHAPE)) // (cp if mesh is not None else 1)
            for back in (False, True):
                for name, form in forms.items():
                    figures = compiled_figures(compiled_form(form, x, cp, back, mesh))
                    row = {"placement": placement, "cp": cp, "direction": direction(back)}
                    row |= {"form": name, "passes": figures["bytes_accessed"] / array, **figures}
                    rows.append(row)
    return rows


def compiled_form(
    form: Form, x: Any, cp: int, back: bool, mesh: Mesh | None
) -> jax.stages.Compiled:
    """`form` compiled for the placement of `x`, the result placed alike."""
    axis = None if mesh is None else "context"
    step = jax.jit(lambda y: form(y, cp, back, axis), out_shardings=x.sharding)
    with nullcontext() if mesh is None else jax.set_mesh(mesh):
        return step.lower(x).compile()


def context_mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.asarray(devices), ("context",), axis_types=(AxisType.Auto,))


def sharding(mesh: Mesh | None, device: jax.Device) -> NamedSharding | SingleDeviceSharding:
    if mesh is None:
        return SingleDeviceSharding(device)
    return NamedSharding(mesh, PartitionSpec(None, "context"))


def direction(back: bool) -> str:
    return "to contiguous" if back else "to zigzag"


if __name__ == "__main__":
    main()
