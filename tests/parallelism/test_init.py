"""Values of the init: the same bits whatever the mesh, the strategy, the pieces, the stacking."""

import functools
import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import (
    DEFAULT_RULES,
    Constant,
    Normal,
    ParamSpec,
    TruncatedNormal,
    init_sharded,
    make_mesh,
    plan_init,
)

SEED, NUM_LAYERS = 7, 3
MESHES = {
    "one_device": ({}, 1),
    "fsdp4": ({"fsdp": 4}, 4),
    "fsdp8": ({"fsdp": 8}, 8),
    "tensor2_fsdp4": ({"fsdp": 4, "tensor": 2}, 8),
    "context4_fsdp2": ({"fsdp": 2, "context": 4}, 8),
}
LECUN = jax.nn.initializers.lecun_normal()
# No size is a multiple of 16, and the sizes of the shards are odd ones: 24 = 8 * 3, 10 = 2 * 5.
MATRICES = {
    "query": ((24, 10), "float32", TruncatedNormal(0.02), ("embed", "heads")),
    "key": ((24, 10), "float32", TruncatedNormal(0.02), ("embed", "heads")),
    "out": ((10, 24), "float32", TruncatedNormal(0.02), ("heads", "embed")),
    "up": ((24, 7), "float32", LECUN, ("embed", "mlp")),
    "down": ((10, 24), "bfloat16", Normal(0.1), ("mlp", "embed")),
}
HEAD = ((24, 13), "float32", TruncatedNormal(0.02), ("embed", "vocab"))  # shares with the above


def mesh_of(name):
    sizes, num_devices = MESHES[name]
    return make_mesh(sizes, jax.devices()[:num_devices])


def unrolled():
    layers = [
        {name: ParamSpec(*parts, layers=layer) for name, parts in MATRICES.items()}
        for layer in range(NUM_LAYERS)
    ]
    return {
        "layers": layers,
        "head": ParamSpec(*HEAD),
        "step": ParamSpec((), "int32", Constant(0), ()),
    }


def scanned():
    layers = {
        name: ParamSpec(
            (NUM_LAYERS, *shape), dtype, initializer, ("layers", *axes), layers=range(NUM_LAYERS)
        )
        for name, (shape, dtype, initializer, axes) in MATRICES.items()
    }
    return {
        "layers": layers,
        "head": ParamSpec(*HEAD),
        "step": ParamSpec((), "int32", Constant(0), ()),
    }


@functools.cache
def one_draw(shape, dtype, initializer):
    return jax.jit(lambda key: initializer(key, shape, jnp.dtype(dtype)))


def definition(path, layer, shape, dtype, initializer):
    """The documented value: one jitted call of the initializer, on one device."""
    path_hash = int.from_bytes(hashlib.blake2s(path.encode(), digest_size=4).digest(), "little")
    key = jax.random.fold_in(jax.random.key(SEED), np.uint32(path_hash))
    return np.asarray(one_draw(shape, dtype, initializer)(jax.random.fold_in(key, layer)))


@pytest.fixture(scope="module")
def expected():
    values = {
        (name, layer): definition(f"layers/{name}", layer, *parts[:3])
        for name, parts in MATRICES.items()
        for layer in range(NUM_LAYERS)
    }
    return values | {"head": definition("head", 0, *HEAD[:3])}


def assert_bits_equal(actual, wanted):
    actual = np.asarray(actual)
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    assert actual.tobytes() == wanted.tobytes()


def assert_tree(tree, expected):
    for (name, layer), wanted in ((k, v) for k, v in expected.items() if k != "head"):
        layers = tree["layers"]
        assert_bits_equal(layers[name][layer] if name in layers else layers[layer][name], wanted)
    assert_bits_equal(tree["head"], expected["head"])
    assert_bits_equal(tree["step"], np.zeros((), np.int32))


@pytest.mark.parametrize(
    ("declare", "mesh_name"),
    [*((unrolled, name) for name in MESHES), (scanned, "one_device"), (scanned, "tensor2_fsdp4")],
)
def test_single_graph_draws_what_the_definition_says(declare, mesh_name, expected):
    mesh = mesh_of(mesh_name)
    key = jax.random.key(SEED)
    assert_tree(init_sharded(declare(), key, mesh, strategy="single_graph"), expected)


@pytest.mark.parametrize(
    ("mesh_name", "stack_bytes", "num_programs"),
    # shared: a draw, a filling, three shapes; up, down and the step counter have their own
    [*((name, 2**20, 5 + 3) for name in MESHES), ("fsdp8", 0, 3 + 3)],
)
def test_programs_shared_or_not_draw_the_same_bits(mesh_name, stack_bytes, num_programs, expected):
    plan = plan_init(unrolled(), mesh_of(mesh_name), stack_bytes=stack_bytes)
    assert plan.num_programs == num_programs
    assert_tree(plan.run(jax.random.key(SEED)), expected)


def test_shards_larger_than_a_piece_draw_the_same_bits():
    shapes = {"up": (64, 1200), "down": (1200, 64), "deep": (6, 40, 320)}
    axes = {"up": ("embed", "mlp"), "down": ("mlp", "embed"), "deep": ("mlp", "embed", "vocab")}
    rules = DEFAULT_RULES.override({"embed": "fsdp", "mlp": "context", "vocab": "tensor"})
    mesh = make_mesh({"fsdp": 2, "context": 2, "tensor": 2})
    for std in (0.5, 3.0):
        initializer = TruncatedNormal(std) if std < 1 else Normal(std)
        specs = {n: ParamSpec(s, "float32", initializer, axes[n]) for n, s in shapes.items()}
        plan = plan_init(specs, mesh, rules)
        assert plan.num_programs == 2 + 3
        for name, array in plan.run(jax.random.key(SEED)).items():
            assert_bits_equal(array, definition(name, 0, shapes[name], "float32", initializer))


@pytest.mark.parametrize("mesh_name", MESHES)
def test_stacked_layers_hold_the_values_of_unrolled_ones(mesh_name, expected):
    assert_tree(init_sharded(scanned(), jax.random.key(SEED), mesh_of(mesh_name)), expected)


def test_an_initializer_may_split_its_key():
    def initializer(key, shape, dtype):
        first, second = jax.random.split(key)
        return jax.random.normal(first, shape, dtype) * jax.random.uniform(second, shape, dtype)

    wanted = definition("gate", 0, (24, 10), "float32", initializer)
    spec = ParamSpec((24, 10), "float32", initializer, ("embed", "mlp"))
    for strategy in ("two_stage", "single_graph"):
        mesh = mesh_of("tensor2_fsdp4")
        array = init_sharded({"gate": spec}, jax.random.key(SEED), mesh, strategy=strategy)
        assert_bits_equal(array["gate"], wanted)


def test_layers_sharded_over_the_mesh_draw_the_same_bits():
    rules = DEFAULT_RULES.override({"layers": "context", "embed": "fsdp"})
    spec = ParamSpec((4, 24, 10), "float32", Normal(1.0), ("layers", "embed", None), range(4))
    mesh = mesh_of("context4_fsdp2")
    array = init_sharded({"layers": {"up": spec}}, jax.random.key(SEED), mesh, rules)
    assert array["layers"]["up"].sharding.shard_shape(spec.shape) == (1, 12, 10)
    for layer in range(4):
        wanted = definition("layers/up", layer, (24, 10), "float32", Normal(1.0))
        assert_bits_equal(array["layers"]["up"][layer], wanted)


def test_an_initializer_that_mixes_elements_keeps_its_bits_too():
    shape, initializer = (24, 24), jax.nn.initializers.orthogonal()
    wanted = definition("rotation", 0, shape, "float32", initializer)
    spec = ParamSpec(shape, "float32", initializer, ("embed", "heads"))
    array = init_sharded({"rotation": spec}, jax.random.key(SEED), mesh_of("tensor2_fsdp4"))
    assert_bits_equal(array["rotation"], wanted)
    np.testing.assert_allclose(wanted @ wanted.T, np.eye(24), atol=1e-5)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(
    ("initializer", "std"),
    [(TruncatedNormal(0.02), 0.02), (Normal(3.0), 3.0), (LECUN, 1 / math.sqrt(256))],
)
def test_each_layer_has_the_asked_deviation_and_its_own_values(initializer, std, stacked):
    shape, axes, count = (256, 192), ("embed", "mlp"), 4
    if stacked:
        specs = {
            "up": ParamSpec(
                (count, *shape), "float32", initializer, ("layers", *axes), range(count)
            )
        }
    else:
        specs = [ParamSpec(shape, "float32", initializer, axes, layer) for layer in range(count)]
    made = init_sharded(specs, jax.random.key(0), mesh_of("fsdp8"))
    layers = np.asarray(made["up"] if stacked else jnp.stack(made), np.float64)
    assert np.abs(layers.std(axis=(1, 2)) / std - 1).max() < 0.03
    assert np.abs(layers.mean(axis=(1, 2))).max() < 0.03 * std
    correlations = np.corrcoef(layers.reshape(count, -1)) - np.eye(count)
    assert np.abs(correlations).max() < 0.03


def test_truncated_normal_ends_at_two_deviations_of_the_cut_one():
    spec = ParamSpec((256, 256), "float32", TruncatedNormal(1.0), (None, None))
    draw = np.asarray(init_sharded([spec], jax.random.key(0), mesh_of("one_device"))[0])
    assert 2.2 < np.abs(draw).max() <= 2 / 0.8796256


def test_constants_are_exact_in_each_dtype_and_share_no_buffer():
    specs = {
        "scale": ParamSpec((6,), "bfloat16", Constant(1.5), ("norm",)),
        "mu": [ParamSpec((16, 4), "float32", Constant(0.0), ("embed", None)) for _ in range(3)],
        "nu": ParamSpec((16, 4), "float32", jax.nn.initializers.zeros, ("embed", None)),
        "step": ParamSpec((), jnp.int32, Constant(3), ()),
    }
    tree = init_sharded(specs, jax.random.key(0), mesh_of("fsdp8"))
    assert tree["step"].dtype == np.int32
    assert int(tree["step"]) == 3
    assert np.asarray(tree["scale"], np.float32).tolist() == [1.5] * 6
    pointers = [
        shard.data.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
    ]
    assert len(set(pointers)) == len(pointers)


def test_constants_that_share_a_row_with_draws_are_exact():
    shapes = {"a": (16, 4), "b": (8, 24), "c": (40,)}
    specs = {
        name: [
            ParamSpec(shape, "bfloat16", draw, ("embed", None)[: len(shape)])
            for draw in (Normal(1.0), Constant(0.1), Constant(-2.0))
        ]
        for name, shape in shapes.items()
    }
    plan = plan_init(specs, mesh_of("fsdp8"))
    assert plan.num_programs == 2 + 3
    for drawn, *constants in plan.run(jax.random.key(0)).values():
        assert np.asarray(drawn, np.float32).std() > 0.5
        for array, value in zip(constants, (0.1, -2.0), strict=True):
            assert_bits_equal(array, np.full(drawn.shape, value, jnp.bfloat16))


def test_constants_that_compare_equal_keep_their_own_bits():
    values = {"zero": 0.0, "minus_zero": -0.0}
    specs = {n: ParamSpec((8,), "float32", Constant(v), (None,)) for n, v in values.items()}
    for name, array in init_sharded(specs, jax.random.key(0), mesh_of("one_device")).items():
        assert_bits_equal(array, np.full(8, values[name], np.float32))


def test_a_plan_runs_again_with_another_key():
    spec = ParamSpec((8, 8), "float32", Normal(1.0), ("embed", "mlp"))
    plan = plan_init({"a": spec, "b": spec}, mesh_of("fsdp8"))
    first, second = plan.run(jax.random.key(0)), plan.run(jax.random.key(1))
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], second["a"])
    assert np.array_equal(first["a"], plan.run(jax.random.PRNGKey(0))["a"])
