"""Which initializers draw each element by itself, read from their traces.

Programs that kinds share draw pieces of a parameter in place of the whole. A piece has the values
of the whole where both traces say the same of every element: take its 32-bit word from the key that
the initializer was given, and compute with that and with numbers. What looks at neighbours, at the
shape, or at words of another size gives another trace, or none that counts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var

from parallelism.draws import KEY_DATA, PRNG
from parallelism.params import Initializer

Shape = tuple[int, ...]

# What gives element i of its result from the elements i of its operands.
_ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bitcast_convert_type", "broadcast_in_dim", "cbrt", "ceil", "clamp", "convert_element_type",
    "copy", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic",
    "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "population_count", "pow",
    "random_bits", "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor",
))  # fmt: skip
_CALLS = ("closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit")


def elementwise_trace(initializer: Initializer, shape: Shape, dtype: Any) -> Hashable | None:
    """What is computed for every element of an array, or None where that is not known.

    Equal traces for two shapes are the same function of an element's 32-bit word. Runs nothing.
    """
    if math.prod(shape) < 2:  # not to be told from a number
        return None
    key = jax.eval_shape(lambda words: jax.random.wrap_key_data(words, impl=PRNG), KEY_DATA)
    try:
        traced = jax.make_jaxpr(lambda key: initializer(key, shape, dtype))(key)
    except Exception:  # the initializer's own; it comes again when this shape's program is traced
        return None
    try:
        return _steps(traced, shape)
    except _NotElementwiseError:
        return None


class _NotElementwiseError(Exception):
    """Something in a trace that is no elementwise step."""


def _steps(traced: ClosedJaxpr, whole: Shape) -> Hashable:
    """The trace with its variables numbered, and the shape taken out; needs it to be elementwise.

    Numbers cannot come from drawn elements, as no step makes an array smaller.
    """
    jaxpr = traced.jaxpr
    if any(np.size(const) != 1 for const in traced.consts):
        raise _NotElementwiseError
    numbers = {var: place for place, var in enumerate([*jaxpr.constvars, *jaxpr.invars])}
    steps: list[Hashable] = [tuple(map(_number, traced.consts))]
    for equation in jaxpr.eqns:
        operands = tuple(_operand(each, numbers) for each in equation.invars)
        for out in equation.outvars:
            numbers[out] = len(numbers)
        results = tuple(_extent(out, whole) for out in equation.outvars)
        steps.append((_action(equation, whole), operands, results))
    return (*steps, tuple(_operand(each, numbers) for each in jaxpr.outvars))


def _action(equation: Any, whole: Shape) -> Hashable:
    """The step's name and what else tells it from others of this name."""
    name = str(equation.primitive)
    if name in _CALLS:
        return _steps(equation.params.get("jaxpr", equation.params.get("call_jaxpr")), whole)
    drawn = equation.params if name == "random_bits" else {"bit_width": 32, "shape": whole}
    if name not in _ELEMENTWISE or (drawn["bit_width"], drawn["shape"]) != (32, whole):
        raise _NotElementwiseError
    if name in ("broadcast_in_dim", "random_bits"):  # the shape again
        return name
    return (name, *((key, repr(value)) for key, value in sorted(equation.params.items())))


def _operand(operand: Any, numbers: dict[Var, int]) -> Hashable:
    return _number(operand.val) if isinstance(operand, Literal) else numbers[operand]


def _number(value: Any) -> Hashable:
    return (str(np.asarray(value).dtype), np.asarray(value).tobytes())


def _extent(variable: Var, whole: Shape) -> Hashable:
    """What a result is: an array of the whole shape, or a number, of any rank."""
    array: Any = variable.aval
    if array.shape != whole and math.prod(array.shape) != 1:
        raise _NotElementwiseError
    return (str(array.dtype), array.shape == whole)
