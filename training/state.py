"""The train state and its declaration: parameters, optimizer state and the step counter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import Literal

from parallelism import Constant, ParamSpec


class TrainState(NamedTuple):
    """What a checkpoint holds: `step` counts finished updates, int32."""

    step: Any
    parameters: Any
    optimizer: Any


def train_state_specs(
    parameter_specs: Any, optimizer: optax.GradientTransformation, trained: Any = None
) -> TrainState:
    """Declares the whole train state, so that init, layouts and checkpoints see one tree.

    A moment of a parameter has that parameter's logical axes; a factored moment those of the
    dimensions that it kept; anything else is replicated. `trained` is the part of the tree that
    the optimizer sees, with None elsewhere; all of it by default.
    """
    state = _optimizer_specs(parameter_specs if trained is None else trained, optimizer)
    return TrainState(ParamSpec((), jnp.dtype(jnp.int32), Constant(0), ()), parameter_specs, state)


def _optimizer_specs(parameter_specs: Any, optimizer: optax.GradientTransformation) -> Any:
    parameters = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), parameter_specs
    )
    traced, shapes = jax.make_jaxpr(optimizer.init, return_shape=True)(parameters)
    leaves: list[Any]
    leaves, tree = jax.tree.flatten(shapes)
    plain = [
        ParamSpec(leaf.shape, leaf.dtype, constant, (None,) * leaf.ndim)
        for leaf, constant in zip(leaves, _constants(traced), strict=True)
    ]
    return optax.tree.map_params(
        optimizer,
        _with_axes_of,
        jax.tree.unflatten(tree, plain),
        parameter_specs,
        is_leaf=lambda leaf: isinstance(leaf, ParamSpec | optax.MaskedNode),
    )


def _with_axes_of(leaf: Any, parameter: ParamSpec) -> Any:
    """Gives a moment the axes of its parameter, or of the dimensions that it kept."""
    if isinstance(leaf, optax.MaskedNode):
        return leaf
    for kept in _kept_dims(len(parameter.shape)):
        if leaf.shape == tuple(parameter.shape[dim] for dim in kept):
            return replace(leaf, axes=tuple(parameter.axes[dim] for dim in kept))
    return leaf


def _kept_dims(rank: int) -> list[list[int]]:
    """All dimensions, then all but one, the last dropped first."""
    every = list(range(rank))
    return [every, *([dim for dim in every if dim != dropped] for dropped in reversed(every))]


def _constants(traced: Any) -> list[Constant | Values]:
    """What each output of an optimizer's init holds.

    Optax starts its states with constants. One that copies parameters into its state would need
    them drawn first, and is refused here.
    """
    values = dict(zip(traced.jaxpr.constvars, traced.consts, strict=True))
    for equation in traced.jaxpr.eqns:
        operand = _constant(equation.invars[0], values)
        if equation.primitive.name in _SHAPE_ONLY and operand is not None:
            values[equation.outvars[0]] = operand
    constants = [_constant(out, values) for out in traced.jaxpr.outvars]
    if any(value is None for value in constants):
        raise ValueError("this optimizer's initial state is not made of constants")
    return [_initializer(np.asarray(value)) for value in constants]


_SHAPE_ONLY = frozenset({"broadcast_in_dim", "convert_element_type", "reshape", "copy"})


def _constant(variable: Any, values: dict[Any, Any]) -> Any:
    return variable.val if isinstance(variable, Literal) else values.get(variable)


def _initializer(value: np.ndarray) -> Constant | Values:
    return Constant(value.item()) if value.size == 1 else Values(tuple(value.ravel().tolist()))


@dataclass(frozen=True)
class Values:
    """Starts an array with the given numbers, in row-major order."""

    values: tuple[float, ...]

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jnp.asarray(self.values, dtype).reshape(shape)
