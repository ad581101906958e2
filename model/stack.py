"""The layers of a model, declared and run segment by segment: repeated rows are scanned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from configs.model_schema import ModelConfig
from configs.schema import AdapterConfig
from model.attention import Attend
from model.layer_plan import Segment, plan_layers
from model.layers import DecoderLayer, Tokens
from model.lora import adapt
from model.moe import Load
from model.parameters import assign_layers
from model.placement import Placement
from model.remat import remat_policy

AttendWith = Callable[[Any], Attend]
"""From the cache of a layer (None in training) to its attention."""


def declare_layers(
    config: ModelConfig, placement: Placement, adapter: AdapterConfig | None = None
) -> nnx.List:
    """One module a slot of a segment, in order; stacked over its layers if the row repeats."""
    modules = []
    for segment in plan_layers(config):
        for slot, kind in enumerate(segment.kinds):
            layer = DecoderLayer(config, kind, placement)
            adapt(layer, adapter)
            assign_layers(layer, segment.layers(slot))
            modules.append(layer)
    return nnx.List(modules)


def run_layers(
    layers: Sequence[Any],
    config: ModelConfig,
    x: jax.Array,
    *,
    tokens: Tokens,
    attend_with: AttendWith,
    caches: Any = None,
) -> tuple[jax.Array, Any, list[Load | None]]:
    """Runs every layer.

    `caches` is a tree with a leading layer axis, or None, and so is what comes back in second
    place. The loads are those of each module in `layers`, stacked where it is.
    """
    new_caches, loads, first = [], [], 0
    for segment in plan_layers(config):
        row = layers[first : first + len(segment.kinds)]
        last = segment.first + segment.num_layers
        own = _every(caches, slice(segment.first, last))
        run = _Row(row, tokens, attend_with, config.remat, segment.repeats > 1)
        x, (cache, load) = run_segment(run, segment, x, own)
        new_caches.append(cache)
        loads += load
        first += len(segment.kinds)
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *new_caches), loads


def run_segment(
    run: _Row, segment: Segment, x: jax.Array, caches: Any
) -> tuple[jax.Array, tuple[Any, list[Load | None]]]:
    """One segment; `caches` and those that come back lead with its layers, in order."""
    length, repeats = len(segment.kinds), segment.repeats
    by_slot = [_every(caches, slice(slot, None, length)) for slot in range(length)]
    if repeats > 1:
        x, (new, loads) = jax.lax.scan(run, x, (run.parameters, by_slot))
    else:
        by_slot = _every(by_slot, 0)
        x, (new, loads) = run(x, (run.parameters, by_slot))
        new = jax.tree.map(lambda c: c[None], new)
    return x, (jax.tree.map(lambda *slots: _interleave(slots), *new), loads)


class _Row:
    """The layers of one repeat of a segment, as the body of a scan."""

    def __init__(
        self,
        row: Sequence[Any],
        tokens: Tokens,
        attend_with: AttendWith,
        remat: str,
        scanned: bool,
    ) -> None:
        split = [nnx.split(layer) for layer in row]
        self.graphs = [graph for graph, _ in split]
        self.parameters = [parameters for _, parameters in split]
        self.tokens, self.attend_with = tokens, attend_with
        self.policy, self.scanned = remat_policy(remat), scanned

    def __call__(self, x: jax.Array, inputs: Any) -> tuple[jax.Array, tuple[list[Any], list[Any]]]:
        caches, loads = [], []
        for graph, parameters, cache in zip(self.graphs, *inputs, strict=True):
            x, (new, load) = self._layer(graph)(x, parameters, cache)
            caches.append(new)
            loads.append(load)
        return x, (caches, loads)

    def _layer(self, graph: Any) -> Callable[..., Any]:
        def layer(x: jax.Array, parameters: Any, cache: Any) -> Any:
            return nnx.merge(graph, parameters)(x, self.tokens, self.attend_with(cache))

        return jax.checkpoint(layer, policy=self.policy, prevent_cse=not self.scanned)


def _every(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _interleave(slots: Sequence[jax.Array]) -> jax.Array:
    """[R, ...] of each slot -> [R * slots, ...], layer by layer."""
    stacked = jnp.stack(slots, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])
