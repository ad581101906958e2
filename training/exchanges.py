"""What a train step moves between devices, read from its trace: no device, nothing compiled.

Exchanges that the program names (attention's, the experts', gathers of weights) are counted as they
stand in the trace. Two kinds come from the compiler, and follow from how arrays are sharded: the
sums of weight gradients, and the sums over the tensor axis. A compiler may move things in another
way, or join exchanges: in a layer that `model.remat=full` runs again, the first hop of a ring, or a
gather of keys in one portion, with the same one of the backward pass. `mode=compile` shows what it
does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.sharding import NamedSharding

from model import parameter_roles
from model.lora import trained_part
from parallelism import ParamSpec
from training.optimizer import hyperparameters
from training.setup import Setup
from training.sheet import Sheet
from training.step import make_train_step

_KINDS = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum_scatter": "reduce-scatter",
    "reduce_scatter": "reduce-scatter",
}
_PURPOSES = {"context": "attention", "expert": "experts", "tensor": "activations"}
_BATCH = {"tokens": "int32", "targets": "int32", "weights": "float32", "positions": "int32"}


Key = tuple[str, str, str]
"""Purpose, kind and mesh axes."""


class Exchange(NamedTuple):
    """One kind of collective for one purpose: how often a step runs it, and what it brings."""

    purpose: str
    kind: str
    axes: str
    runs: int
    num_bytes: int
    """Bytes of its results on one device, all of a step together."""


def exchange_sheet(setup: Setup) -> Sheet:
    """The collectives that a step of a declared run is expected to run, per device."""
    rows = [
        (each.purpose, each.kind, each.axes, f"{each.runs:,}", f"{each.num_bytes:,}")
        for each in expected_exchanges(setup)
    ]
    columns = ("for", "collective", "over", "a step", "bytes of results")
    return Sheet("Collectives expected", columns, rows, numeric=columns[3:])


def uncounted_exchanges(setup: Setup) -> Iterator[str]:
    """What the sheet leaves out, a line each."""
    whole = [axis for axis in setup.mesh.axis_names if axis != "data"]
    if setup.config.optimizer.name == "muon" and any(setup.mesh.shape[axis] > 1 for axis in whole):
        yield (
            "optimizer=muon multiplies sharded matrices with each other; what the compiler moves "
            "for that, several times their size, is not in the table (mode=compile counts it)"
        )


def expected_exchanges(setup: Setup) -> list[Exchange]:
    """The collectives of one train step; `setup.mesh` may be abstract. Traces the step."""
    counts: Counter[Key] = Counter()
    num_bytes: Counter[Key] = Counter()
    for (purpose, kind, axes), times, size in _explicit(_traced(setup).jaxpr, 1):
        several = [axis for axis in axes.split("*") if setup.mesh.shape[axis] > 1]
        if several:
            key = (purpose, kind, "*".join(several))
            counts[key] += times
            num_bytes[key] += times * size
    named = [Exchange(*key, counts[key], size) for key, size in sorted(num_bytes.items())]
    found = [*named, *_gradient_sums(setup), *_tensor_sums(setup)]
    return [each for each in found if each.num_bytes > 0]


def _traced(setup: Setup) -> Any:
    config = setup.config
    step = make_train_step(setup.model, setup.rule, config.train)
    shape = (config.data.batch, config.data.seq_len)
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in _BATCH.items()}
    batch["segment_ids"] = batch["positions"]
    numbers = {
        name: jax.ShapeDtypeStruct((), jnp.float32)
        for name in hyperparameters(config.optimizer, config.optimizer.lr)
    }
    return jax.make_jaxpr(step)(setup.abstract_state(), batch, numbers)


def _explicit(jaxpr: Any, times: int) -> Iterator[tuple[Key, int, int]]:
    """(purpose, kind, axes), runs and bytes of every collective in a trace, scans multiplied."""
    stored: dict[Any, NamedSharding] = {}
    gradients: set[Any] = set()
    for equation in jaxpr.eqns:
        name = str(equation.primitive)
        if name == "sharding_constraint":
            yield from _relaid(equation, stored, gradients, times)
        elif name == "shard_map":
            gradients.update(equation.outvars)
        elif name in _KINDS:
            kind, axes = _KINDS[name], _axes(equation.params)
            size = sum(_size(out.aval.shape, out.aval.dtype) for out in equation.outvars)
            others = "weights" if kind == "all-gather" else "gradients"
            yield (_PURPOSES.get(axes, others), kind, axes), times, size
        inner = times * (equation.params["length"] if name == "scan" else 1)
        for each in jaxprs_in_params(equation.params):
            yield from _explicit(each, inner)


def _relaid(
    equation: Any, stored: dict[Any, NamedSharding], gradients: set[Any], times: int
) -> Iterator[tuple[Key, int, int]]:
    """A weight that is constrained as it is stored and then as it is used is gathered.

    The gradient of one that ranks have split by heads goes the other way, from dimension to
    dimension where it can.
    """
    (source,), (out,) = equation.invars, equation.outvars
    before, after = stored.get(source), equation.params["sharding"]
    stored[out] = after
    if source in gradients:
        gradients.add(out)
    purpose = "gradients" if source in gradients else "weights"
    size = _size(after.shard_shape(out.aval.shape), out.aval.dtype)
    old, new = _dims_of_axes(before), _dims_of_axes(after)
    gone = [axis for axis in old if axis not in new]
    moved = [axis for axis in old if axis in new and old[axis] != new[axis]]
    for kind, axes in (("all-gather", gone), ("all-to-all", moved)):
        if axes:
            yield (purpose, kind, "*".join(axes)), times, size


def _gradient_sums(setup: Setup) -> Iterator[Exchange]:
    """Each weight's gradient is summed over the axes that share tokens, and kept in shards."""
    mesh, table = setup.mesh, setup.rules.table
    sharing = [axis for axis in _flat(table["batch"], table["sequence"]) if mesh.shape[axis] > 1]
    every = jax.tree.leaves(trained_part(setup.specs.parameters, parameter_roles(setup.model)))
    # The trace shows those of experts itself.
    trained = [spec for spec in every if "expert" not in spec.axes]
    if sharing and trained:
        size = sum(_gathered_bytes(setup, spec) for spec in trained)
        runs = setup.config.train.grad_accum
        kind, axes = "reduce-scatter or all-reduce", "*".join(sharing)
        yield Exchange("gradients", kind, axes, runs * len(trained), runs * size)


def _gathered_bytes(setup: Setup, spec: ParamSpec) -> int:
    """Bytes of a weight in the compute dtype, whole but for its split over tensor and experts."""
    axes = setup.model.placement.gathered(spec.axes)
    shard = setup.rules.sharding(setup.mesh, axes, spec.shape).shard_shape(spec.shape)
    return _size(shard, setup.model.compute_dtype)


def _tensor_sums(setup: Setup) -> Iterator[Exchange]:
    """What splits the width of a layer is summed after attention and MLP, forward and backward."""
    config, mesh = setup.config, setup.mesh
    if mesh.shape["tensor"] == 1:
        return
    shape = (config.data.batch, config.data.seq_len, config.model.embed_dim)
    spec = setup.rules.sharding(mesh, ("batch", "sequence", None), shape)
    size = _size(spec.shard_shape(shape), setup.model.compute_dtype)
    count = 4 * config.model.num_layers + 2  # and once each for the table and the head
    yield Exchange("activations", "all-reduce", "tensor", count, count * size)


def _axes(parameters: dict[str, Any]) -> str:
    names = parameters.get("axis_name", parameters.get("axes", ()))
    return names if isinstance(names, str) else "*".join(map(str, names))


def _dims_of_axes(sharding: NamedSharding | None) -> dict[str, int]:
    """The dimension that each mesh axis splits."""
    entries = () if sharding is None else sharding.spec
    return {axis: dim for dim, entry in enumerate(entries) for axis in _flat(entry)}


def _flat(*entries: str | Sequence[str] | None) -> list[str]:
    lists = ((entry,) if isinstance(entry, str) else entry or () for entry in entries)
    return [axis for entry in lists for axis in entry]


def _size(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
