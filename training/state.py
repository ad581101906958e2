"""The train state and its declaration: parameters, optimizer state and the step counter."""

from __future__ import annotations

from dataclasses import replace
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
    parameter_specs: Any, optimizer: optax.GradientTransformation
) -> TrainState:
    """Declares the whole train state, so that init, layouts and checkpoints see one tree.

    A moment of a parameter has that parameter's logical axes; a factored moment those of the
    dimensions that it kept; anything else is replicated.
    """
    state = _optimizer_specs(parameter_specs, optimizer)
    return TrainState(ParamSpec((), jnp.dtype(jnp.int32), Constant(0), ()), parameter_specs, state)


def _optimizer_specs(parameter_specs: Any, optimizer: optax.GradientTransformation) -> Any:
    parameters = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), parameter_specs
    )
    traced, shapes = jax.make_jaxpr(optimizer.init, return_shape=True)(parameters)
    leaves, tree = jax.tree.flatten(shapes)
    plain = [
        ParamSpec(leaf.shape, leaf.dtype, constant, (None,) * leaf.ndim)
        for leaf, constant in zip(leaves, _constants(traced), strict=True)
    ]
    return optax.tree.map_params(
        optimizer,
        _with_axes_of,
        tree.unflatten(plain),
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


def _constants(traced: Any) -> list[Constant]:
    """The one value that each output of an optimizer's init holds.

    Optax starts its states with constants. One that copies parameters into its state would need
    them drawn first, and is refused here.
    """
    values: dict[Any, Any] = {}
    for equation in traced.jaxpr.eqns:
        operands = [_constant(operand, values) for operand in equation.invars]
        if equation.primitive.name in _SHAPE_ONLY and operands[0] is not None:
            values[equation.outvars[0]] = operands[0]
    constants = [_constant(out, values) for out in traced.jaxpr.outvars]
    if any(value is None for value in constants):
        raise ValueError("this optimizer's initial state is not made of constants")
    return [Constant(value) for value in constants if value is not None]


_SHAPE_ONLY = frozenset({"broadcast_in_dim", "convert_element_type", "reshape", "copy"})


def _constant(variable: Any, values: dict[Any, Any]) -> float | int | None:
    if isinstance(variable, Literal):
        return np.asarray(variable.val).item()
    return values.get(variable)
