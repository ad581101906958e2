"""Declarations: what a ParamSpec refuses, and which key its values come from."""

from typing import NamedTuple

import jax
import numpy as np
import pytest

from parallelism import Constant, Normal, ParamSpec, make_mesh, plan_init
from parallelism.params import DrawId, draw_ids, flatten_specs


class Pair(NamedTuple):
    left: ParamSpec
    right: ParamSpec


def spec(layers=None, shape=(4, 2)):
    axes = ("layers", "embed") if isinstance(layers, tuple | range) else ("embed", None)
    return ParamSpec(shape, "float32", Normal(1.0), axes, layers)


def test_a_spec_is_a_leaf_and_keeps_plain_values():
    declared = ParamSpec([np.int64(4), 2], np.float32, Normal(1.0), ["embed", None], range(4))
    assert jax.tree.leaves({"a": declared}) == [declared]
    assert declared == ParamSpec((4, 2), "float32", Normal(1.0), ("embed", None), (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 2), "float32", Normal(1.0), ("embed",)), "has 2 dimensions, but axes .* name 1"),
        (((4,), "float32", Normal(1.0), (None,), (0, 1)), "a stack of 2 layers needs a first"),
        (((4,), "float32", Normal(1.0), (None,), -1), r"layers \(-1,\): .* counted from 0"),
        (((0, 4), "float32", Normal(1.0), (None, None), ()), r"layers \(\): there must be some"),
    ],
)
def test_parts_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ParamSpec(*arguments)


def test_paths_join_keys_indices_and_attributes():
    tree = {"decoder": [{"query": spec()}, Pair(spec(), spec())]}
    paths, _ = flatten_specs(tree)
    assert list(paths) == ["decoder/0/query", "decoder/1/left", "decoder/1/right"]


# blake2s("layers/query") and blake2s("layers/3/query"), first four bytes, little endian
LAYERS_QUERY, LAYERS_3_QUERY = 1505833646, 666329703


def test_a_layer_number_counts_apart_from_the_path():
    assert draw_ids("layers/3/query", spec(layers=3)) == [DrawId(LAYERS_QUERY, 3)]
    stacked = spec(layers=(3, 9), shape=(2, 4))
    assert draw_ids("layers/query", stacked) == [DrawId(LAYERS_QUERY, n) for n in (3, 9)]
    assert draw_ids("layers/3/query", spec()) == [DrawId(LAYERS_3_QUERY, 0)]


def test_two_parameters_with_one_key_are_refused_unless_they_draw_nothing():
    mesh = make_mesh({"fsdp": 8})
    with pytest.raises(ValueError, match="'layers/0/query' and 'layers/1/query' would draw"):
        plan_init({"layers": [{"query": spec(layers=0)} for _ in range(2)]}, mesh)
    zeros = ParamSpec((4,), "float32", Constant(0.0), (None,), 0)
    assert plan_init({"layers": [zeros, zeros]}, mesh).num_programs == 1
