"""Update rules from Optax, built inside the step from numbers that are inputs to it.

Learning rate, weight decay, betas, epsilon and clip norm are traced scalars, so that another
value compiles nothing. Only the rule's name and which parameters decay are static.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs.schema import OptimizerConfig
from model import Role
from parallelism import ParamSpec
from training.adafactor import scale_by_adafactor

Hyperparameters = dict[str, Any]
Rule = Callable[[Hyperparameters], optax.GradientTransformation]


def hyperparameters(config: OptimizerConfig, learning_rate: float) -> Hyperparameters:
    """The numbers of one update, float32 scalars; no clip norm means infinity."""
    clip_norm = math.inf if config.clip_norm is None else config.clip_norm
    values = {
        "learning_rate": learning_rate,
        "weight_decay": config.weight_decay,
        "clip_norm": clip_norm,
        "b1": config.b1,
        "b2": config.b2,
        "eps": config.eps,
    }
    return {name: np.float32(value) for name, value in values.items()}


def update_rule(config: OptimizerConfig, specs: Any, roles: Any) -> Rule:
    """The optimizer as a function of its numbers, whose state and updates are float32.

    `specs` (tree of ParamSpec) and `roles` (tree of Role) say what each parameter is. The state
    that `rule(numbers).init` makes has the same form for all numbers.
    """
    decays = jax.tree.map(lambda role: role.decays, roles)
    scale = _SCALES[config.name]

    def rule(numbers: Hyperparameters) -> optax.GradientTransformation:
        return _in_float32(
            optax.chain(
                scale(numbers, specs, roles),
                optax.add_decayed_weights(numbers["weight_decay"], mask=decays),
                optax.scale(-numbers["learning_rate"]),
            )
        )

    return rule


def _in_float32(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """The rule for parameters of any dtype, whose moments a bfloat16 would not move."""

    def init(params: Any) -> optax.OptState:
        return rule.init(jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.OptState]:
        grads, params = jax.tree.map(lambda x: x.astype(jnp.float32), (grads, params))
        return rule.update(grads, state, params)

    return optax.GradientTransformation(init, update)


def global_norm(tree: Any) -> jax.Array:
    """The root of the sum of all squares, summed in float32 whatever the dtypes."""
    squares = (jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree))
    return jnp.sqrt(sum(squares, jnp.float32(0)))


def clip(grads: Any, norm: jax.Array, clip_norm: jax.Array) -> Any:
    """Scales all gradients by min(1, clip_norm / norm)."""
    factor = jnp.minimum(1.0, clip_norm / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
    return jax.tree.map(lambda grad: (grad * factor).astype(grad.dtype), grads)


def _adam(numbers: Hyperparameters, *_: Any) -> optax.GradientTransformation:
    return optax.scale_by_adam(numbers["b1"], numbers["b2"], numbers["eps"])


def _lion(numbers: Hyperparameters, *_: Any) -> optax.GradientTransformation:
    return optax.scale_by_lion(numbers["b1"], numbers["b2"])


def _sgd(numbers: Hyperparameters, *_: Any) -> optax.GradientTransformation:
    return optax.trace(numbers["b1"])


def _adafactor(_: Hyperparameters, specs: Any, roles: Any) -> optax.GradientTransformation:
    return scale_by_adafactor(specs)


def _muon(numbers: Hyperparameters, specs: Any, roles: Any) -> optax.GradientTransformation:
    """Orthogonalised momentum for matrices between activations, Adam for all else.

    Updates of a matrix have a root mean square of about 0.2, like Adam's (arXiv 2502.16982), so
    that one learning rate serves both.
    """
    from optax.contrib import MuonDimensionNumbers, scale_by_muon
    from optax.contrib._muon import scale_by_shape

    def dims(spec: ParamSpec, role: Role) -> Any:
        if role.num_input_dims is None:
            return optax.MaskedNode()
        first = role.num_batch_dims + isinstance(spec.layers, tuple)
        split = first + role.num_input_dims
        return MuonDimensionNumbers(
            tuple(range(first, split)), tuple(range(split, len(spec.shape)))
        )

    numbers_of_dims = jax.tree.map(dims, specs, roles)
    labels = jax.tree.map(lambda role: "adam" if role.num_input_dims is None else "muon", roles)
    muon = optax.chain(
        scale_by_muon(
            beta=numbers["b1"],
            eps=numbers["eps"],
            weight_dimension_numbers=lambda _: numbers_of_dims,
        ),
        scale_by_shape(weight_dimension_numbers=lambda _: numbers_of_dims, consistent_rms=0.2),
    )
    return optax.partition({"muon": muon, "adam": _adam(numbers)}, labels)


_SCALES: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "adamw": _adam,
    "lion": _lion,
    "sgd": _sgd,
    "adafactor": _adafactor,
    "muon": _muon,
}
