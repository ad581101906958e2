"""Initializers that compare by value, so that equal ones count as one kind of parameter."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
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


def initializer_identity(initializer: Any) -> Hashable:
    """What two initializers have in common exactly when they draw the same values.

    Value classes and plain functions stand for themselves. Closures of one code over equal values,
    such as two `jax.nn.initializers.normal(0.02)`, are the same, and so are equal partials; a
    user who makes a fresh one for every parameter would otherwise compile a program for each.
    """
    if isinstance(initializer, functools.partial):
        keywords = tuple(sorted(initializer.keywords.items()))
        return ("partial", _value(initializer.func), _value(initializer.args), _value(keywords))
    if isinstance(initializer, types.FunctionType) and initializer.__closure__:
        cells = tuple(cell.cell_contents for cell in initializer.__closure__)
        defaults = (initializer.__defaults__, tuple((initializer.__kwdefaults__ or {}).items()))
        return (initializer.__code__, _value(cells), _value(defaults))
    return initializer if isinstance(initializer, Hashable) else id(initializer)


def _value(value: Any) -> Hashable:
    """A stand-in that tells 1 from 1.0 and from True, and 0.0 from -0.0."""
    if isinstance(value, tuple):
        return tuple(_value(part) for part in value)
    if isinstance(value, float):
        return (float, value.hex())
    if isinstance(value, types.FunctionType | functools.partial):
        return initializer_identity(value)
    return (type(value), value if isinstance(value, Hashable) else id(value))
