"""Sharding rules: the table, its fallbacks and its refusals."""

import jax
import pytest
from jax.sharding import PartitionSpec

from parallelism import DEFAULT_RULES, Rules, make_mesh

EMBED = ("fsdp", "context", "expert")


@pytest.fixture(scope="module")
def mesh():
    return make_mesh({"fsdp": 2, "context": 2, "tensor": 2})


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (("batch", "sequence"), PartitionSpec(("data", "fsdp", "expert"), "context")),
        (("embed", "mlp"), PartitionSpec(("fsdp", "context", "expert"), "tensor")),
        (("layers", "embed", "kv_heads", "head_dim"), (None, EMBED, "tensor", None)),
        (("vocab", None), PartitionSpec("tensor", None)),
        ((), PartitionSpec()),
    ],
)
def test_each_dimension_takes_the_mesh_axes_of_its_rule(axes, expected):
    assert DEFAULT_RULES.spec(axes) == PartitionSpec(*expected)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(8, EMBED), (6, "fsdp"), (3, None), (4, EMBED)],
)
def test_a_size_that_does_not_divide_takes_the_longest_prefix_that_does(mesh, size, expected):
    assert DEFAULT_RULES.spec(("embed",), (size,), mesh) == PartitionSpec(expected)
    array = jax.device_put(jax.numpy.zeros(size), DEFAULT_RULES.sharding(mesh, ("embed",), (size,)))
    assert array.sharding.shard_shape((size,))[0] == {8: 2, 6: 3, 3: 3, 4: 1}[size]


def test_fallbacks_name_what_a_parameter_lost(mesh):
    (fallback,) = DEFAULT_RULES.fallbacks(("vocab", "embed"), (98, 6), mesh)
    assert (fallback.axis, fallback.size, fallback.taken) == ("embed", 6, ("fsdp",))
    assert str(fallback) == "embed=6 does not divide over fsdp * context * expert; uses fsdp"
    (fallback,) = DEFAULT_RULES.fallbacks(("vocab", "embed"), (97, 8), mesh)
    assert str(fallback) == "vocab=97 does not divide over tensor; uses nothing"


def test_a_mesh_axis_of_size_one_is_no_loss():
    mesh = make_mesh({"fsdp": -1})
    assert list(DEFAULT_RULES.fallbacks(("vocab", "norm"), (97, 7), mesh)) == []


def test_two_logical_axes_on_one_mesh_axis_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'mlp' and 'heads' .* over mesh axis 'tensor'"):
        DEFAULT_RULES.spec(("mlp", "heads"))
    with pytest.raises(ValueError, match=r"'batch' and 'embed' .* over mesh axis 'fsdp'"):
        DEFAULT_RULES.spec(("batch", "embed"))


def test_rules_and_mesh_must_fit_together(mesh):
    with pytest.raises(ValueError, match=r"no rule for logical axis 'mpl'; there are batch, .*mlp"):
        DEFAULT_RULES.spec(("mpl",))
    wrong = DEFAULT_RULES.override({"mlp": "tensors"})
    with pytest.raises(ValueError, match="mlp -> tensors names tensors, but the mesh has the axes"):
        wrong.spec(("mlp",), (8,), mesh)
    with pytest.raises(ValueError, match=r"1 logical axes .* for shape"):
        DEFAULT_RULES.spec(("mlp",), (8, 8), mesh)


def test_override_changes_some_lines_of_a_copy():
    rules = DEFAULT_RULES.override({"layers": "context", "embed": "fsdp", "expert": ["data"]})
    assert rules.spec(("layers", "embed")) == PartitionSpec("context", "fsdp")
    assert rules.spec(("expert",)) == PartitionSpec("data")
    assert DEFAULT_RULES.spec(("layers",)) == PartitionSpec(None)
    assert rules != DEFAULT_RULES
    assert hash(Rules({"a": "x"})) == hash(Rules({"a": ("x",)}))
