"""Parameters as declarations: what each one is, and which random key its values come from."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

Initializer = Callable[..., jax.Array]


@dataclass(frozen=True)
class ParamSpec:
    """One parameter before it exists; a leaf in a tree of parameters.

    `initializer(key, shape, dtype)` draws it. `axes` gives a logical axis, or None, to each
    dimension. `layers` says which layers' values these are: None, it belongs to no layer; a number,
    it is that layer's; a tuple, its first dimension stacks these layers' values, each drawn by its
    own call of the initializer with the shape of one layer.

    Raises ValueError when the parts do not fit together.
    """

    shape: tuple[int, ...]
    dtype: Any
    initializer: Initializer
    axes: tuple[str | None, ...]
    layers: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "layers", _as_layers(self.layers))
        if len(self.axes) != len(self.shape):
            raise ValueError(
                f"shape {self.shape} has {len(self.shape)} dimensions, but axes {self.axes} name "
                f"{len(self.axes)}"
            )
        if isinstance(self.layers, tuple) and self.shape[:1] != (len(self.layers),):
            raise ValueError(
                f"a stack of {len(self.layers)} layers needs a first dimension of that size, but "
                f"the shape is {self.shape}"
            )


class DrawId(NamedTuple):
    """What a draw folds into the root key: two unsigned 32-bit numbers."""

    path: int
    layer: int


def flatten_specs(specs: Any) -> tuple[dict[str, ParamSpec], Any]:
    """Returns the specs by their path ("layers/0/attention/query") and the tree's structure.

    Raises ValueError for a leaf that is no ParamSpec and for two leaves with one path.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(specs)
    by_path: dict[str, ParamSpec] = {}
    for keys, leaf in leaves:
        path = "/".join(map(_component, keys))
        if not isinstance(leaf, ParamSpec):
            raise ValueError(f"{path or 'the tree'} is {type(leaf).__name__}, not a ParamSpec")
        if path in by_path:
            raise ValueError(f"two parameters have the path {path!r}")
        by_path[path] = leaf
    return by_path, treedef


def draw_ids(path: str, spec: ParamSpec) -> list[DrawId]:
    """Returns what seeds each draw of a parameter: one, or one a layer for a stack.

    The path counts without its layer numbers when `layers` gives them, so that "layers/3/query" of
    layer 3 and the stacked "layers/query" draw the same values.
    """
    if spec.layers is None:
        return [DrawId(_stable_hash(path), 0)]
    common = "/".join(part for part in path.split("/") if not part.isdecimal())
    layers = spec.layers if isinstance(spec.layers, tuple) else (spec.layers,)
    return [DrawId(_stable_hash(common), layer) for layer in layers]


def check_distinct(draws: Iterable[tuple[str, DrawId]]) -> None:
    """Raises ValueError, naming both, when two parameters would draw from one key."""
    owner: dict[DrawId, str] = {}
    for path, draw in draws:
        if draw in owner:
            raise ValueError(
                f"{owner[draw]!r} and {path!r} would draw from the same random key (layer "
                f"{draw.layer}); rename one of them, or correct its layers"
            )
        owner[draw] = path


def _as_layers(layers: Any) -> int | tuple[int, ...] | None:
    """Plain Python numbers in place of ranges, lists and NumPy's; refuses negative ones."""
    if layers is None:
        return None
    stacked = isinstance(layers, Iterable)
    numbers = tuple(operator.index(layer) for layer in (layers if stacked else (layers,)))
    if not numbers or min(numbers) < 0:
        raise ValueError(f"layers {numbers}: there must be some, counted from 0")
    return numbers if stacked else numbers[0]


def _component(key: Any) -> str:
    """One step of a path: a dictionary key, an index or an attribute's name."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _stable_hash(path: str) -> int:
    """32 bits that depend on the text alone, in every process and every version of Python."""
    return int.from_bytes(hashlib.blake2s(path.encode(), digest_size=4).digest(), "little")
