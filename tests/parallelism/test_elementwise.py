"""Which initializers share a program, and that those which must not keep their values."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import DEFAULT_RULES, Normal, ParamSpec, TruncatedNormal, make_mesh, plan_init
from parallelism.elementwise import elementwise_trace

SHAPES = {"up": (16, 24), "down": (6, 16), "odd": (7, 10)}
ELEMENTWISE = {
    "normal": Normal(0.02),
    "truncated_normal": TruncatedNormal(0.02),
    "jax_normal": jax.nn.initializers.normal(0.02),
    "jax_uniform": jax.nn.initializers.uniform(0.3),
    "signs": jax.random.rademacher,
    "rectified": lambda key, shape, dtype: jax.nn.relu(jax.random.gumbel(key, shape, dtype)),
    "twice_one_word": lambda key, shape, dtype: (
        jax.random.normal(key, shape, dtype) + jax.random.uniform(key, shape, dtype)
    ),
}
# Each would draw other values in pieces, or none.
OTHERS = {
    "fan_in": lambda key, shape, dtype: jax.random.normal(key, shape, dtype) / np.sqrt(shape[0]),
    "centred": lambda key, shape, dtype: jax.nn.standardize(
        jax.random.normal(key, shape, dtype), axis=0
    ),
    "integers": lambda key, shape, dtype: jax.random.randint(key, shape, 0, 9).astype(dtype),
    "counts": lambda key, shape, dtype: jax.random.poisson(key, 3.0, shape).astype(dtype),
    "reversed": lambda key, shape, dtype: jax.random.normal(key, shape, dtype)[::-1],
    "one_row_more": lambda key, shape, dtype: jax.random.normal(
        key, (shape[0] + 1, *shape[1:]), dtype
    )[1:],
    "matrices_only": lambda key, shape, dtype: jax.random.normal(key, shape, dtype) * shape[1],
    "another_key": lambda key, shape, dtype: jax.random.normal(
        jax.random.fold_in(key, 1), shape, dtype
    ),
    "a_number": lambda key, shape, dtype: jnp.full(shape, jax.random.normal(key, (), dtype)),
    "an_array": lambda key, shape, dtype: (
        jax.random.normal(key, shape, dtype) * np.arange(shape[-1], dtype=dtype)
    ),
}


def definition(path, shape, dtype, initializer):
    path_hash = int.from_bytes(hashlib.blake2s(path.encode(), digest_size=4).digest(), "little")
    key = jax.random.fold_in(jax.random.key(3), np.uint32(path_hash))
    draw = jax.jit(lambda key: initializer(key, shape, jnp.dtype(dtype)))
    return np.asarray(draw(jax.random.fold_in(key, 0)))


def assert_drawn_by_definition(initializer, dtype, num_programs):
    rules = DEFAULT_RULES.override({"embed": "fsdp", "mlp": "tensor"})
    specs = {
        name: ParamSpec(shape, dtype, initializer, ("embed", "mlp"))
        for name, shape in SHAPES.items()
    }
    plan = plan_init(specs, make_mesh({"fsdp": 4, "tensor": 2}), rules)
    assert plan.num_programs == num_programs
    for name, array in plan.run(jax.random.key(3)).items():
        wanted = definition(name, SHAPES[name], dtype, initializer)
        assert np.asarray(array).tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_initializers_have_one_trace_for_all_shapes(name):
    initializer = ELEMENTWISE[name]
    traces = [elementwise_trace(initializer, shape, "float32") for shape in SHAPES.values()]
    assert traces[0] is not None
    assert set(traces) == {elementwise_trace(initializer, (2048,), "float32")}


@pytest.mark.parametrize("name", OTHERS)
def test_other_initializers_have_none_or_one_of_their_shape(name):
    of_pieces = elementwise_trace(OTHERS[name], (2048,), "float32")
    for shape in SHAPES.values():
        trace = elementwise_trace(OTHERS[name], shape, "float32")
        assert trace is None or trace != of_pieces


def test_initializers_that_differ_in_a_number_have_different_traces():
    traces = [elementwise_trace(Normal(std), (8, 8), "float32") for std in (1.0, 2.0, -1.0)]
    assert len({*traces, elementwise_trace(Normal(1.0), (8, 8), "bfloat16")}) == 4


def test_words_of_sixteen_bits_are_not_drawn_in_pieces():
    draw = jax.nn.initializers.normal(0.02)
    assert elementwise_trace(draw, (8, 8), "bfloat16") is None
    assert elementwise_trace(Normal(0.02), (8, 8), "bfloat16") is not None


@pytest.mark.parametrize("name", ["jax_normal", "rectified"])
def test_elementwise_initializers_of_any_origin_share_and_keep_their_bits(name):
    assert_drawn_by_definition(ELEMENTWISE[name], "float32", 2 + 3)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fan_in", "float32"),
        ("integers", "float32"),
        ("counts", "float32"),
        ("jax_normal", "bfloat16"),
    ],
)
def test_others_are_drawn_whole_and_keep_their_bits(name, dtype):
    assert_drawn_by_definition({**ELEMENTWISE, **OTHERS}[name], dtype, 3)
