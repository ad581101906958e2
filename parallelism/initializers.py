"""Initializers that compare by value, so that equal ones count as one kind of parameter."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Constant:
    """Every element is `value`; needs no random key."""

    value: float

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
        return jnp.full(shape, self.value, dtype)


@dataclass(frozen=True)
class Normal:
    """Normal with mean 0 and standard deviation `std`, drawn in float32."""

    std: float

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
        return (jax.random.normal(key, shape, jnp.float32) * self.std).astype(dtype)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal cut off at two standard deviations and scaled so that its own is `std`."""

    std: float

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
        draw = jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
        return (draw * (self.std / _TRUNCATED_STD)).astype(dtype)


_TRUNCATED_STD = 0.87962566103423978  # of a standard normal between -2 and 2
_CONSTANT_FUNCTIONS = (jax.nn.initializers.zeros, jax.nn.initializers.ones)


def ignores_key(initializer: Any) -> bool:
    """Whether the values do not depend on the random key."""
    return isinstance(initializer, Constant) or initializer in _CONSTANT_FUNCTIONS


def constant_value(initializer: Any) -> float:
    """The number that an initializer that ignores its key gives to every element."""
    if isinstance(initializer, Constant):
        return initializer.value
    return _CONSTANT_FUNCTIONS.index(initializer)  # zeros, then ones


def initializer_identity(initializer: Any) -> Hashable:
    """Something that is equal for two initializers when they surely draw the same values.

    Value classes stand for themselves. Functions of one code over equal values, such as two
    `jax.nn.initializers.normal(0.02)`, are the same, and so are equal partials; a user who makes
    a fresh one for every parameter would otherwise compile a program for each. What cannot be
    compared by value is compared by `is`.
    """
    return _frozen(initializer, ())


def _frozen(value: Any, outer: tuple[Any, ...]) -> Hashable:
    """A stand-in for comparing; it tells 1 from 1.0 and from True, and 0.0 from -0.0.

    `outer` are the functions around `value`, at which a function that refers to itself ends.
    """
    if isinstance(value, tuple):
        return tuple(_frozen(part, outer) for part in value)
    if isinstance(value, float):
        return (type(value), value.hex())
    if isinstance(value, functools.partial):
        return _frozen((value.func, value.args, tuple(value.keywords.items())), outer)
    if isinstance(value, types.FunctionType) and value not in outer:
        return _frozen_function(value, (*outer, value))
    itself = (type(value), value if isinstance(value, Hashable) else id(value))
    if is_dataclass(value) and not isinstance(value, type):  # equal though 0.0 and -0.0 differ
        return (*itself, _frozen(tuple(getattr(value, f.name) for f in fields(value)), outer))
    return itself


def _frozen_function(function: types.FunctionType, outer: tuple[Any, ...]) -> Hashable:
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    defaults = (function.__defaults__, tuple((function.__kwdefaults__ or {}).items()))
    values = _frozen((cells, *defaults), outer)
    return (function.__code__, id(function.__globals__), values)
