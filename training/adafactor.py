"""Adafactor's scaling of updates, with every layer of a stack a parameter of its own.

Moments are factored, and updates clipped, as if layers were apart, so that scanned and unrolled
layers learn alike.

Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018
(arXiv:1804.04235), sections 3 to 6, without the first moment and the relative step size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

CLIP_RMS = 1.0


def scale_by_adafactor(specs: Any) -> optax.GradientTransformation:
    """Divides by the root of factored second moments, then clips to an RMS of CLIP_RMS.

    `specs` (tree of ParamSpec) says which parameters are stacks of layers. The state is Optax's
    FactoredState; of a stack, each moment leads with the layers.
    """
    moments = optax.scale_by_factored_rms()
    stacked = [isinstance(spec.layers, tuple) for spec in jax.tree.leaves(specs)]

    def init(params: Any) -> optax.OptState:
        leaves: list[Any]
        tree: Any
        leaves, tree = jax.tree.flatten(params)
        if not leaves:  # optax.tree.map_params asks which parts of the state are like the tree
            return moments.init(params)
        states = [
            _each_layer(moments.init, of_many)(leaf)
            for leaf, of_many in zip(leaves, stacked, strict=True)
        ]
        _, *new = (tree.unflatten(parts) for parts in zip(*states, strict=True))
        return optax.FactoredState(jnp.zeros([], jnp.int32), *new)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.OptState]:
        count, *before = state

        def scale(grad: Any, param: Any, *own: Any) -> tuple[Any, ...]:
            scaled, (_, *after) = moments.update(grad, optax.FactoredState(count, *own), param)
            return _clipped(scaled), *after

        arrays = zip(*map(jax.tree.leaves, (grads, params, *before)), strict=True)
        results = [
            _each_layer(scale, of_many)(*each)
            for each, of_many in zip(arrays, stacked, strict=True)
        ]
        tree: Any = jax.tree.structure(grads)
        updates, *after = (tree.unflatten(parts) for parts in zip(*results, strict=True))
        return updates, optax.FactoredState(optax.safe_increment(count), *after)

    return optax.GradientTransformation(init, update)


def _each_layer(function: Callable[..., Any], of_many: bool) -> Callable[..., Any]:
    return jax.vmap(function) if of_many else function


def _clipped(update: jax.Array) -> jax.Array:
    """An update with its root mean square, taken in float32, brought down to CLIP_RMS."""
    wide = update.astype(jnp.float32)
    rms = jnp.sqrt(jnp.mean(jnp.square(wide)))
    return (wide / jnp.maximum(1.0, rms / CLIP_RMS)).astype(update.dtype)
