"""mode=plan: what a config means, worked out without any device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec
from rich.console import Console

from configs.schema import Config
from configs.topology import num_known_devices
from configs.validate import resolve
from configs.words import counted
from model import layer_kinds
from parallelism import AttentionMask, Layout, ParamSpec, Rules, attended_pairs, balance
from training.exchanges import exchange_sheet, uncounted_exchanges
from training.flops import step_flops
from training.setup import Setup, axis_sizes, declare_run
from training.sheet import Sheet

_MIN_WIDTH = 140  # tables are not cut off where output is piped


def print_plan(config: Config) -> None:
    """Prints mesh, parameters, bytes per device, FLOPs, balance and the collectives expected.

    Uses no device but the CPU, which traces the step. An axis of -1 counts the devices of
    mesh.topology or mesh.simulate, or one.
    """
    jax.config.update("jax_platforms", "cpu")
    config = _without_devices(config)
    sizes = axis_sizes(config)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    setup = declare_run(config, mesh)
    console = Console()
    console.width = max(console.width, _MIN_WIDTH)
    console.print(_headline(setup))
    for sheet in [*plan_sheets(setup), exchange_sheet(setup)]:
        if sheet.rows:
            console.print(sheet.for_terminal())
    for line in [*uncounted_exchanges(setup), *fallback_lines(setup)]:
        console.print(line)


def plan_markdown(setup: Setup) -> str:
    """What `print_plan` prints, as Markdown."""
    parts = [_headline(setup), *(sheet.markdown() for sheet in plan_sheets(setup))]
    return "\n\n".join([*parts, *fallback_lines(setup)])


def plan_sheets(setup: Setup) -> list[Sheet]:
    """Parameters, memory and work of a declared run."""
    return [_parameter_sheet(setup), _memory_sheet(setup), _work_sheet(setup)]


def fallback_lines(setup: Setup) -> Iterator[str]:
    """One line for every parameter that its rule cannot shard over all of its mesh axes."""
    for path, spec in _by_path(setup.specs.parameters):
        for fallback in setup.rules.fallbacks(spec.axes, spec.shape, setup.mesh):
            yield f"{path}: {fallback}, replicated over the rest"


def device_bytes(specs: Any, rules: Rules, mesh: Any) -> int:
    """Bytes per device of a tree of ParamSpec under the rules."""
    return sum(_device_bytes(spec, rules, mesh) for spec in jax.tree.leaves(specs))


def num_parameters(specs: Any) -> int:
    """Numbers in a tree of ParamSpec."""
    return sum(math.prod(spec.shape) for spec in jax.tree.leaves(specs))


def rank_pairs(setup: Setup, layout: Layout | None = None) -> np.ndarray:
    """Pairs (query, key) that each context rank attends to in a layer of a row, int64 [C].

    Layers with a window attend to fewer pairs than others; this is the mean over all layers. In
    the attention's own layout, unless one is given; under ulysses every rank attends to all pairs
    for its share of the heads, which counts as that share of the pairs.
    """
    attention, cp = setup.model.placement.attention, setup.config.mesh.context
    kinds = Counter(kind.window for kind in layer_kinds(setup.config.model))
    seq_len, num_layers = setup.config.data.seq_len, setup.config.model.num_layers
    pairs = [
        count * attended_pairs(layout or attention.layout, seq_len, AttentionMask(window=window))
        for window, count in kinds.items()
    ]
    total = np.sum(pairs, axis=0) // num_layers
    shares_heads = layout is None and attention.exchanges_heads
    return np.full(cp, total.sum() // cp) if shares_heads else total


def _without_devices(config: Config) -> Config:
    fixed = math.prod(size for size in axis_sizes(config).values() if size > 0)
    return resolve(config, num_known_devices(config) or fixed)


def _device_bytes(spec: ParamSpec, rules: Rules, mesh: Any) -> int:
    ways = _ways(rules.spec(spec.axes, spec.shape, mesh), mesh)
    return math.prod(spec.shape) * spec.dtype.itemsize // ways


def _ways(partition: PartitionSpec, mesh: Any) -> int:
    names = [name for part in partition if part for name in _names(part)]
    return math.prod(mesh.shape[name] for name in names)


def _names(part: str | tuple[str, ...]) -> tuple[str, ...]:
    return (part,) if isinstance(part, str) else part


def _parameter_sheet(setup: Setup) -> Sheet:
    rows = [
        (
            path,
            " x ".join(map(str, spec.shape)),
            " ".join(str(axis or "-") for axis in spec.axes),
            _sharded(setup, spec) or "replicated",
            f"{_device_bytes(spec, setup.rules, setup.mesh):,}",
        )
        for path, spec in _by_path(setup.specs.parameters)
    ]
    columns = ("parameter", "shape", "logical axes", "sharded", "bytes per device")
    return Sheet("Parameters", columns, rows, numeric=columns[-1:])


def _sharded(setup: Setup, spec: ParamSpec) -> str:
    """The dimensions that are split, as `embed over fsdp*context`; axes of size 1 split nothing."""
    partition = setup.rules.spec(spec.axes, spec.shape, setup.mesh)
    parts = []
    for axis, part in zip(spec.axes, partition, strict=True):
        names = [name for name in _names(part or ()) if setup.mesh.shape[name] > 1]
        if names:
            parts.append(f"{axis} over {'*'.join(names)}")
    return ", ".join(parts)


def _memory_sheet(setup: Setup) -> Sheet:
    parameters = device_bytes(setup.specs.parameters, setup.rules, setup.mesh)
    optimizer = device_bytes(setup.specs.optimizer, setup.rules, setup.mesh)
    parts = {"parameters": parameters, "optimizer": optimizer, "gradients": parameters}
    parts["sum"] = sum(parts.values())
    rows = [(name, f"{size:,}", f"{size / 2**30:.2f}") for name, size in parts.items()]
    columns = ("per device", "bytes", "GiB")
    return Sheet("Memory, without activations", columns, rows, numeric=columns[1:])


def _work_sheet(setup: Setup) -> Sheet:
    config, specs = setup.config, setup.specs.parameters
    flops = step_flops(specs, config.model, config.data.batch, config.data.seq_len)
    pairs = rank_pairs(setup)
    rows = [
        ("parameters", f"{num_parameters(specs):,}"),
        ("tokens a step", f"{config.data.batch * config.data.seq_len:,}"),
        ("model FLOPs a step (causal)", f"{flops:.4g}"),
        ("model FLOPs a step and device", f"{flops / setup.mesh.size:.4g}"),
        ("attended pairs per context rank", _ranks(pairs.tolist())),
        ("balance, max over mean", f"{balance(pairs):.4f}"),
    ]
    return Sheet("Work", ("work", "value"), rows)


def _ranks(pairs: list[int]) -> str:
    if len(set(pairs)) == 1:
        return f"{pairs[0]:,} on each of {len(pairs)}"
    return " ".join(f"{count:,}" for count in pairs)


def _by_path(specs: Any) -> Iterator[tuple[str, ParamSpec]]:
    for path, spec in jax.tree_util.tree_leaves_with_path(specs):
        yield "/".join(str(part.key) for part in path), spec


def _headline(setup: Setup) -> str:
    sizes = " ".join(f"{axis}={size}" for axis, size in setup.mesh.shape.items())
    return f"model {setup.config.model.name} on {counted(setup.mesh.size, 'device')}: {sizes}"
