"""Norms and histograms of each layer's gradient and parameters, at an interval.

They are part of the compiled step where the config asks for them, behind a condition on the step:
other steps skip the work, and without the config keys there is nothing to skip.
"""

# E edges of buckets, L layers in a stack

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tensorboardX import summary as summaries
from tensorboardX.proto.summary_pb2 import Summary

from configs.schema import LogConfig
from parallelism import ParamSpec

Stats = dict[str, dict[str, dict[str, Any]]]  # norms or histograms -> grad or param -> path -> [L]

_POWERS = 2.0 ** np.arange(-26, 9)
_EDGES_E = np.concatenate([-_POWERS[::-1], [0.0], _POWERS]).astype(np.float32)


@dataclass(frozen=True)
class LayerStats:
    """What is measured of the layers, and when; `specs` is the tree of all parameters."""

    config: LogConfig
    specs: Any

    @property
    def enabled(self) -> bool:
        """Whether any step measures anything."""
        return bool(self.config.norms_every or self.config.histograms_every)

    def due(self, step: int) -> bool:
        """Whether step number `step` measures anything."""
        return any(_is_due(step, every) for every in self._intervals().values())

    def measure(self, step: jax.Array, grads: Any, parameters: Any) -> Stats:
        """Sums of squares and counts of every parameter; zeros unless `step` is due. Traceable."""
        trees = {"grad": grads, "param": parameters}
        return {
            name: jax.lax.cond(
                step % every == 0,
                lambda t, f=_MEASURES[name]: self._each(f, t),
                lambda t, f=_MEASURES[name]: jax.tree.map(
                    jnp.zeros_like, jax.eval_shape(lambda t: self._each(f, t), t)
                ),
                trees,
            )
            for name, every in self._intervals().items()
            if every
        }

    def scalars(self, step: int, stats: Stats) -> dict[str, float]:
        """`layers/grad_norm/003` and the like, from what step `step` measured."""
        if not _is_due(step, self.config.norms_every):
            return {}
        return {
            f"layers/{kind}_norm/{group}": math.sqrt(float(squares))
            for kind, by_path in stats["norms"].items()
            for group, squares in self._by_group(by_path).items()
        }

    def histograms(self, step: int, stats: Stats) -> Iterator[Summary]:
        """Histograms `layers/grad/003` and the like, from what step `step` measured."""
        if not _is_due(step, self.config.histograms_every):
            return
        for kind, by_path in stats["histograms"].items():
            for group, counts_E in self._by_group(by_path).items():
                yield _histogram(f"layers/{kind}/{group}", counts_E)

    def _intervals(self) -> dict[str, int]:
        return {"norms": self.config.norms_every, "histograms": self.config.histograms_every}

    def _each(self, measure: Callable[[jax.Array, bool], jax.Array], trees: Any) -> Any:
        specs = _by_path(self.specs)
        return {
            kind: {
                path: measure(leaf.astype(jnp.float32), isinstance(specs[path].layers, tuple))
                for path, leaf in _by_path(tree).items()
            }
            for kind, tree in trees.items()
        }

    def _by_group(self, by_path: dict[str, np.ndarray]) -> dict[str, Any]:
        """Sums over the parameters of one layer; what is in no layer stands for itself."""
        specs, groups = _by_path(self.specs), defaultdict[str, Any](int)
        for path, values in by_path.items():
            spec: ParamSpec = specs[path]
            if isinstance(spec.layers, tuple):
                for layer, value in zip(spec.layers, values, strict=True):
                    groups[f"{layer:03d}"] += value.astype(np.float64)
            else:
                group = path if spec.layers is None else f"{spec.layers:03d}"
                groups[group] += values.astype(np.float64)
        return dict(sorted(groups.items()))


def _squares(x: jax.Array, stacked: bool) -> jax.Array:
    """Sum of squares, float32 [L] of a stack, else []."""
    return jnp.sum(jnp.square(x), axis=tuple(range(stacked, x.ndim)))


def _counts(x: jax.Array, stacked: bool) -> jax.Array:
    """How many numbers lie at or below each edge, and how many there are, int32 [L, E+1]."""
    below = x[..., None] <= np.append(_EDGES_E, np.float32(np.inf))
    return jnp.sum(below, axis=tuple(range(stacked, x.ndim)), dtype=jnp.int32)


_MEASURES: dict[str, Callable[[jax.Array, bool], jax.Array]] = {
    "norms": _squares,
    "histograms": _counts,
}


def _histogram(tag: str, at_or_below_E: np.ndarray) -> Summary:
    """Buckets between powers of two on both sides of zero, without the empty ones at the ends."""
    counts = np.diff(at_or_below_E, prepend=0.0)
    edges = np.append(_EDGES_E.astype(np.float64), np.finfo(np.float64).max)
    filled = np.flatnonzero(counts)
    first, last = (filled[0], filled[-1]) if filled.size else (0, 0)
    # One bucket below the first: TensorBoard takes a bucket's left edge from the one before.
    kept = slice(max(first - 1, 0), last + 1)
    low = float(edges[max(first - 1, 0)])
    high = float(edges[min(last, len(edges) - 2)])
    middles = np.clip((edges + np.concatenate([edges[:1], edges[:-1]])) / 2, low, high)
    return summaries.histogram_raw(
        tag,
        min=low,
        max=high,
        num=float(at_or_below_E[-1]),
        sum=float(counts @ middles),
        sum_squares=float(counts @ middles**2),
        bucket_limits=edges[kept].tolist(),
        bucket_counts=counts[kept].tolist(),
    )


def _by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(str(part.key) for part in path): leaf for path, leaf in leaves}


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
