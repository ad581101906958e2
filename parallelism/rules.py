"""One table says which mesh axis shards which logical axis; everything else is read from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

AxisNames = str | Sequence[str] | None
LogicalAxes = Sequence[str | None]


@dataclass(frozen=True)
class Fallback:
    """A dimension that its rule would split into more parts than its size allows."""

    axis: str
    size: int
    wanted: tuple[str, ...]
    taken: tuple[str, ...]

    def __str__(self) -> str:
        taken = " * ".join(self.taken) or "nothing"
        return (
            f"{self.axis}={self.size} does not divide over {' * '.join(self.wanted)}; uses {taken}"
        )


@dataclass(frozen=True)
class Rules:
    """Logical axis -> the mesh axis, or the mesh axes from outer to inner, that shard it.

    `table` may give None, one name or several; it is kept as tuples. A Rules object does not change
    and is hashable; `override` makes another.
    """

    table: Mapping[str, AxisNames]

    def __post_init__(self) -> None:
        table = {axis: _as_tuple(names) for axis, names in self.table.items()}
        object.__setattr__(self, "table", table)

    def __hash__(self) -> int:
        return hash(frozenset(self.table.items()))

    def override(self, changes: Mapping[str, AxisNames]) -> Rules:
        """Returns these rules with some lines replaced or added."""
        return Rules({**self.table, **changes})

    def spec(
        self,
        axes: LogicalAxes,
        shape: Sequence[int] | None = None,
        mesh: Mesh | AbstractMesh | None = None,
    ) -> PartitionSpec:
        """Returns the PartitionSpec of an array whose dimensions carry these logical axes.

        With `shape` and `mesh`, a dimension that does not divide over all its mesh axes takes the
        longest prefix of them that divides it, and is replicated over the rest:
        `embed=6 -> (fsdp=2, context=4)` is sharded over fsdp alone.

        Raises ValueError for a logical axis without a rule, for a rule that names an axis which the
        mesh lacks, and when two logical axes of the array would be sharded over one mesh axis.
        """
        names = self._names(axes, mesh)
        if shape is not None and mesh is not None:
            _check_rank(axes, shape)
            names = [_dividing_prefix(n, size, mesh) for n, size in zip(names, shape, strict=True)]
        return PartitionSpec(*(_compact(n) for n in names))

    def sharding(
        self, mesh: Mesh, axes: LogicalAxes, shape: Sequence[int] | None = None
    ) -> NamedSharding:
        """Returns `spec(axes, shape, mesh)` on the devices of `mesh`."""
        return NamedSharding(mesh, self.spec(axes, shape, mesh))

    def fallbacks(
        self, axes: LogicalAxes, shape: Sequence[int], mesh: Mesh | AbstractMesh
    ) -> Iterator[Fallback]:
        """Yields the dimensions of an array that `spec` shards less than their rules ask."""
        for axis, size, wanted in zip(axes, shape, self._names(axes, mesh), strict=True):
            taken = _dividing_prefix(wanted, size, mesh)
            if axis is not None and _ways(taken, mesh) != _ways(wanted, mesh):
                yield Fallback(axis, size, wanted, taken)

    def _names(self, axes: LogicalAxes, mesh: Mesh | AbstractMesh | None) -> list[tuple[str, ...]]:
        """Mesh axes of each dimension, each mesh axis used once at most."""
        used_by: dict[str, str] = {}
        result = []
        for axis in axes:
            names = () if axis is None else self._rule(axis, mesh)
            for name in names:
                if name in used_by:
                    raise ValueError(
                        f"logical axes {used_by[name]!r} and {axis!r} of {tuple(axes)} are both "
                        f"sharded over mesh axis {name!r}; give one of them another rule, or None"
                    )
                used_by[name] = str(axis)
            result.append(names)
        return result

    def _rule(self, axis: str, mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
        if axis not in self.table:
            raise ValueError(
                f"no rule for logical axis {axis!r}; there are {', '.join(self.table)}"
            )
        names = _as_tuple(self.table[axis])
        missing = [n for n in names if mesh is not None and n not in mesh.axis_names]
        if mesh is not None and missing:
            raise ValueError(
                f"the rule {axis} -> {' * '.join(names)} names {', '.join(missing)}, but the mesh "
                f"has the axes {', '.join(map(str, mesh.axis_names))}"
            )
        return names


def _as_tuple(names: AxisNames) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _compact(names: tuple[str, ...]) -> AxisNames:
    if not names:
        return None
    return names[0] if len(names) == 1 else names


def _ways(names: Sequence[str], mesh: Mesh | AbstractMesh) -> int:
    return math.prod(mesh.shape[name] for name in names)


def _dividing_prefix(
    names: tuple[str, ...], size: int, mesh: Mesh | AbstractMesh
) -> tuple[str, ...]:
    while size % _ways(names, mesh):
        names = names[:-1]
    return names


def _check_rank(axes: LogicalAxes, shape: Sequence[int]) -> None:
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} logical axes {tuple(axes)} for shape {tuple(shape)}")


DEFAULT_RULES = Rules(
    {
        "batch": ("data", "fsdp", "expert"),
        "sequence": "context",
        # Of parameters: neither a context nor an expert rank is a replica of weights.
        "embed": ("fsdp", "context", "expert"),
        "expert_embed": ("fsdp", "context"),  # of experts, which have a mesh axis of their own
        "expert": "expert",
        "mlp": "tensor",
        "heads": "tensor",
        "kv_heads": "tensor",
        "vocab": "tensor",
        "layers": None,
        "head_dim": None,
        "norm": None,
    }
)
