"""Two trees of arrays compared leaf by leaf, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_SHOWN = 10


def describe(tree: Any) -> dict[str, str]:
    """Path, dtype and shape of every leaf: {"parameters/embed": "float32[256,64]"}."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        )
        for path, leaf in leaves
    }


def differences(
    saved: Mapping[str, str], wanted: Mapping[str, str], partial: bool = False
) -> list[str]:
    """A line for each leaf whose path, dtype or shape differs, at most ten and a count.

    With `partial` `saved` may have leaves that `wanted` has not.
    """
    paths = wanted if partial else {**saved, **wanted}
    lines = [
        f"{path}: saved {saved.get(path, 'nothing')}, now {wanted.get(path, 'nothing')}"
        for path in paths
        if saved.get(path) != wanted.get(path)
    ]
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"and {more} more leaves"]
