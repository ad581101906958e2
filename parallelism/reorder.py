"""reorder_sequence: between a sequence's contiguous order and a layout over context ranks."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from parallelism.exchange import exchange
from parallelism.layout import Layout, positive_dim

TreeT = TypeVar("TreeT")


def reorder_sequence(
    x: TreeT,
    cp_size: int,
    seq_dim: int = 1,
    to_contiguous: bool = False,
    layout: str = "zigzag",
    mesh_axis: str | None = None,
) -> TreeT:
    """Put a sequence into the order in which `cp_size` context ranks hold it, or back.

    >>> reorder_sequence(np.arange(8), cp_size=2, seq_dim=0)    # [0 1 6 7 | 2 3 4 5]
    array([0, 1, 6, 7, 2, 3, 4, 5])
    >>> reorder_sequence(np.arange(8), cp_size=2, seq_dim=0, layout="striped")
    array([0, 2, 4, 6, 1, 3, 5, 7])

    `x` is an array of any shape and dtype with the sequence along `seq_dim` (negative counts from
    the end), or a tree of such arrays; None stays None. NumPy in, NumPy out, on the host; JAX in,
    JAX out, traceable and differentiable, the gradient being the opposite reordering. At cp_size=1
    `x` itself comes back.

    Without `mesh_axis` the sequence is taken to lie whole on each device: one read and one write,
    no gather. With it, `x` is sharded along `seq_dim` over that axis of the current mesh
    (jax.set_mesh), or is this rank's shard of it where the axis is already manual (inside
    jax.shard_map). The ranks then exchange half shards by two collective-permutes (zigzag), or all
    but 1/cp_size of each shard by one all-to-all (striped), and other dimensions stay sharded as
    they are.

    Raises ValueError for a sequence length that does not fit (naming the nearest that do), a
    dimension, layout or mesh axis that is not there, or an axis whose size is not cp_size;
    TypeError for a leaf that is not an array.
    """
    plan = Layout(layout, cp_size)
    move = functools.partial(
        _reorder, plan=plan, dim=seq_dim, folded=to_contiguous, mesh_axis=mesh_axis
    )
    return jax.tree.map(move, x)


def _reorder(x: Any, *, plan: Layout, dim: int, folded: bool, mesh_axis: str | None) -> Any:
    if not isinstance(x, np.ndarray | jax.Array):
        raise TypeError(f"expected NumPy or JAX arrays, not {type(x).__name__}")
    dim = positive_dim(x.shape, dim)
    manual = mesh_axis in jax.sharding.get_abstract_mesh().manual_axes
    if isinstance(x, np.ndarray) and not manual:
        return plan.unfold(x, dim) if folded else plan.fold(x, dim)
    mesh = _mesh_of(x)
    if mesh_axis is not None:
        _check_axis(mesh, mesh_axis, plan.cp)
    if plan.cp > 1:
        plan.check(x.shape[dim] * (plan.cp if manual else 1))
    if plan.is_identity:
        return x
    if mesh_axis is None:
        return _local(x, plan=plan, dim=dim, folded=folded)
    if manual:
        return exchange(jnp.asarray(x), plan, dim, mesh_axis, folded=folded)
    return _sharded(x, plan=plan, dim=dim, folded=folded, axis=mesh_axis, mesh=mesh)


@functools.partial(jax.jit, static_argnames=("plan", "dim", "folded"))
def _local(x: jax.Array, *, plan: Layout, dim: int, folded: bool) -> jax.Array:
    return plan.unfold(x, dim) if folded else plan.fold(x, dim)


@functools.partial(jax.jit, static_argnames=("plan", "dim", "folded", "axis", "mesh"))
def _sharded(
    x: jax.Array, *, plan: Layout, dim: int, folded: bool, axis: str, mesh: Mesh | AbstractMesh
) -> jax.Array:
    spec, axes = _manual_part(x, dim, axis)
    move = functools.partial(exchange, layout=plan, dim=dim, axis=axis, folded=folded)
    return jax.shard_map(move, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=axes)(x)


def _manual_part(x: jax.Array, dim: int, axis: str) -> tuple[PartitionSpec, set[str]]:
    """How `x` is sharded as far as is known here, with `axis` along `dim`; and the axes in it.

    Axes of type Auto are XLA's and not known while tracing, so they are left to it, and dimensions
    stay sharded over them. Explicit ones are known and have to be named: None would replicate.
    """
    known = jax.typeof(x).sharding.spec
    entries = [*known, *[None] * (x.ndim - len(known))]
    entries[dim] = axis
    tuples = [entry if isinstance(entry, tuple) else (entry,) for entry in entries if entry]
    return PartitionSpec(*entries), {name for names in tuples for name in names}


def _mesh_of(x: np.ndarray | jax.Array) -> Mesh | AbstractMesh:
    """The current mesh; with none set, the one that a concrete array already lies on."""
    current = jax.sharding.get_abstract_mesh()
    if current.empty and isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        sharding = x.sharding
        if isinstance(sharding, NamedSharding):
            return sharding.mesh
    return current


def _check_axis(mesh: Mesh | AbstractMesh, axis: str, cp_size: int) -> None:
    if axis not in mesh.shape and cp_size > 1:
        there = ", ".join(mesh.axis_names) if mesh.axis_names else "none set: see jax.set_mesh"
        raise ValueError(f"mesh_axis={axis!r} is not an axis of the current mesh ({there})")
    size = mesh.shape.get(axis, 1)
    if size != cp_size:
        raise ValueError(
            f"cp_size={cp_size}, but mesh axis {axis!r} has {size} ranks; they have to be the same"
        )
