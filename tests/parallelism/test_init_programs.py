"""The programs of the init: how many, what they move, what they hold in memory, what they leave."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import (
    DEFAULT_RULES,
    Constant,
    Normal,
    ParamSpec,
    Rules,
    TruncatedNormal,
    init_sharded,
    make_mesh,
    plan_init,
)

COLLECTIVES = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter")
STD = TruncatedNormal(0.02)


def transformer(num_layers, *, stacked, width=512, mlp=1536, vocab=2048):
    """Parameters and AdamW moments, with the kinds of a Llama."""

    def specs(matrix, scale):
        def declare(shape, axes, initializer=matrix):
            if stacked:
                layers = range(num_layers)
                return ParamSpec(
                    (num_layers, *shape), "float32", initializer, ("layers", *axes), layers
                )
            return [ParamSpec(shape, "float32", initializer, axes, n) for n in range(num_layers)]

        return {
            "embedding": ParamSpec((vocab, width), "float32", matrix, ("vocab", "embed")),
            "query": declare((width, 8, 64), ("embed", "heads", "head_dim")),
            "key": declare((width, 2, 64), ("embed", "kv_heads", "head_dim")),
            "value": declare((width, 2, 64), ("embed", "kv_heads", "head_dim")),
            "gate": declare((width, mlp), ("embed", "mlp")),
            "up": declare((width, mlp), ("embed", "mlp")),
            "down": declare((mlp, width), ("mlp", "embed")),
            "norm": declare((width,), ("norm",), scale),
        }

    moments = functools.partial(specs, Constant(0.0), Constant(0.0))
    return {"params": specs(STD, Constant(1.0)), "mu": moments(), "nu": moments()}


def test_the_number_of_programs_does_not_grow_with_depth():
    mesh = make_mesh({"fsdp": 8})
    # query, key with value, gate with up, down, embedding: a program each, or one for all of them;
    # their five shapes, and that of the norms, serve draws and moments; one fills with numbers
    for stack_bytes, num_programs in ((0, 5 + 5 + 2), (2**30, 1 + 6 + 1)):
        plans = [
            plan_init(transformer(n, stacked=False), mesh, stack_bytes=stack_bytes) for n in (2, 12)
        ]
        assert [plan.num_programs for plan in plans] == [num_programs] * 2
    assert plan_init(transformer(12, stacked=True), mesh).num_programs == 4 + 1 + 5 + 2
    single = plan_init(transformer(2, stacked=False), mesh, strategy="single_graph")
    assert single.num_programs == 1


@pytest.mark.parametrize(("stacked", "stack_bytes"), [(True, 0), (False, 0), (False, 2**30)])
def test_every_device_draws_its_own_shard_in_the_memory_of_one_more(stacked, stack_bytes):
    specs = transformer(4, stacked=stacked)["params"]
    plan = plan_init(specs, make_mesh({"fsdp": 8}), stack_bytes=stack_bytes).compile()
    leaves = jax.tree.leaves(specs)
    largest = max(4 * math.prod(leaf.shape) for leaf in leaves)
    for program in plan.compiled:
        assert not COLLECTIVES.search(program.as_text())
        memory = program.memory_analysis()
        assert memory.temp_size_in_bytes <= 1.1 * largest / 8
        assert memory.output_size_in_bytes <= 1.02 * largest / 8


def test_what_is_left_is_the_state_and_nothing_else():
    mesh, shape = make_mesh({"fsdp": 8}), (64, 96)
    matrices = [ParamSpec(shape, "float32", STD, ("embed", "mlp"), n) for n in range(5)]
    others = {n: ParamSpec((64, 32 * n), "float32", STD, ("embed", "mlp")) for n in (1, 2)}
    norm = ParamSpec((64,), "float32", Constant(1.0), ("norm",))
    specs = {"up": matrices, "norm": norm, "others": others}
    before = {id(array) for array in jax.live_arrays()}
    tree = init_sharded(specs, jax.random.key(0), mesh)
    arrays = [array for array in jax.live_arrays() if id(array) not in before]
    left = [array for array in arrays if array.size > 2]  # the key is no part of the state
    assert {id(array) for array in left} == {id(leaf) for leaf in jax.tree.leaves(tree)}
    on_one_device = sum(leaf.addressable_shards[0].data.nbytes for leaf in left)
    assert on_one_device == (5 + 1) * 64 * 96 * 4 / 8 + 64 * 4


def test_each_array_lies_as_the_rules_say():
    mesh = make_mesh({"fsdp": 2, "context": 2, "tensor": 2})
    specs = transformer(2, stacked=False, width=64, mlp=96, vocab=80)
    tree = init_sharded(specs, jax.random.key(0), mesh)
    for spec, array in zip(jax.tree.leaves(specs), jax.tree.leaves(tree), strict=True):
        assert array.sharding == DEFAULT_RULES.sharding(mesh, spec.axes, spec.shape)
        assert array.shape == spec.shape
        assert array.sharding.is_fully_replicated == (spec.axes == ("norm",))


def fresh_lambda():
    return lambda key, shape, dtype: jax.random.normal(key, shape, dtype) * 0.1


def scaled(initializer, factor):
    return lambda key, shape, dtype: initializer(key, shape, dtype) * factor


@pytest.mark.parametrize(
    "make",
    [
        lambda: jax.nn.initializers.normal(0.02),
        lambda: jax.nn.initializers.variance_scaling(2.0, "fan_in", "normal"),
        fresh_lambda,
        lambda: scaled(jax.nn.initializers.normal(0.02), 0.5),
        lambda: functools.partial(scaled(Normal(1.0), 2.0)),
        lambda: TruncatedNormal(0.5),
    ],
)
def test_equal_initializers_made_anew_are_one_kind(make):
    specs = [ParamSpec((8, 8), "float32", make(), (None, None)) for _ in range(3)]
    assert plan_init(specs, make_mesh({"fsdp": 8}), stack_bytes=0).num_programs == 1


def test_initializers_that_differ_are_kinds_of_their_own():
    initializers = [
        *(jax.nn.initializers.normal(std) for std in (0.02, 0.03)),
        *(scaled(Normal(1.0), factor) for factor in (1, 1.0, 2)),
        *(Normal(std) for std in (1.0, 2.0, np.float64(2.0))),
    ]
    specs = [ParamSpec((8, 8), "float32", draw, (None, None)) for draw in initializers]
    assert plan_init(specs, make_mesh({"fsdp": 8})).num_programs == len(initializers)


def test_compiling_starts_once_and_in_the_background():
    spec = ParamSpec((8, 8), "float32", Normal(1.0), (None, None))
    plan = plan_init({"a": spec}, make_mesh({"fsdp": 8}))
    assert plan.compiled == []
    first = plan.start_compile().compile().compiled
    assert plan.compile_seconds > 0
    assert plan.start_compile().compile().compiled == first


def test_initializers_that_break_their_promise_are_refused_by_path():
    mesh = make_mesh({"fsdp": 8})
    wrong_dtype = ParamSpec((8,), "bfloat16", lambda k, s, d: jnp.zeros(s), (None,))
    with pytest.raises(ValueError, match=r"'a/b' was asked for bfloat16\[8\] and gave float32"):
        plan_init({"a": {"b": wrong_dtype}}, mesh).start_compile()
    wrong_shape = ParamSpec((8,), "float32", lambda k, s, d: np.float32(0), (None,))
    with pytest.raises(ValueError, match=r"asked for float32\[8\] and gave float32\[\]"):
        plan_init([wrong_shape], mesh).start_compile()


def test_trees_and_keys_that_cannot_be_drawn_are_refused():
    mesh, spec = make_mesh({"fsdp": 8}), ParamSpec((8,), "float32", Normal(1.0), ("embed",))
    with pytest.raises(ValueError, match="a/1 is ShapeDtypeStruct, not a ParamSpec"):
        plan_init({"a": [spec, jax.ShapeDtypeStruct((), jnp.float32)]}, mesh)
    with pytest.raises(ValueError, match="parameter 'a': no rule for logical axis 'embed'"):
        plan_init({"a": spec}, mesh, Rules({}))
    with pytest.raises(ValueError, match="'two_stages' is neither two_stage nor single_graph"):
        plan_init({"a": spec}, mesh, strategy="two_stages")
    with pytest.raises(ValueError, match="is not one of threefry2x32"):
        plan_init({"a": spec}, mesh).run(jax.random.key(0, impl="rbg"))
    assert init_sharded({}, jax.random.key(0), mesh) == {}
