"""Counting what compiled programs do, against products and sums worked out by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from parallelism import make_mesh
from parallelism.hlo import array_shapes, program_work


def compiled_text(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def test_products_in_nested_loops_count_as_often_as_they_run():
    x = jnp.ones((2, 4, 8))

    def once(x, _):
        return jnp.einsum("bij,bkj->bik", x, x) @ x, None

    def function(x):
        return lax.scan(lambda x, _: lax.scan(once, x, None, length=5), x, None, length=3)[0]

    text = compiled_text(function, x)
    assert program_work(text).dot_flops == 3 * 5 * 2 * (2 * 4 * 4 * 8 + 2 * 4 * 8 * 4)
    assert (2, 4, 8) in array_shapes(text)


def test_a_loop_of_unknown_length_is_refused_unless_a_length_is_given():
    def function(x, times):
        return lax.fori_loop(0, times, lambda _, x: x @ x, x)

    text = compiled_text(function, jnp.ones((4, 4)), 3)
    with pytest.raises(ValueError, match="loops"):
        program_work(text)
    assert program_work(text, unknown_trips=7).dot_flops == 7 * 2 * 4 * 4 * 4


@pytest.mark.parametrize(
    ("groups", "count"),
    [("{{0},{1}}", 0), ("[2,1]<=[2]", 0), ("{{0,1}}", 1), ("{{0},{1,2}}", 1), ("[1,2]<=[2]", 1)],
)
def test_a_device_by_itself_exchanges_nothing(groups, count):
    text = f"""ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0)
  ROOT %sum = f32[4]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}, to_apply=%add
}}"""
    assert program_work(text).collectives["all-reduce"] == count


OF_A_TPU = """
%body (state: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %state = (s32[], f32[4,4]) parameter(0)
  %index = s32[] get-tuple-element(%state), index=0
  %x = f32[4,4]{1,0} get-tuple-element(%state), index=1
  %dot = f32[4,4]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %next = (s32[], f32[4,4]) tuple(%index, %dot)
}
%condition (state.1: (s32[], f32[4,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5), metadata={op_name="while"}
  %state.1 = (s32[], f32[4,4]) parameter(0)
  %index.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%index.1, %limit), direction=LT
}
ENTRY %main (start: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %start = (s32[], f32[4,4]) parameter(0)
  ROOT %while = (s32[], f32[4,4]) while(%start), condition=%condition, body=%body
}
"""


def test_a_loop_that_ends_below_a_constant_counts_to_it_where_asked():
    once = 2 * 4 * 4 * 4
    assert program_work(OF_A_TPU, read_conditions=True).dot_flops == 5 * once
    assert program_work(OF_A_TPU, unknown_trips=1).dot_flops == once
    upwards = OF_A_TPU.replace("direction=LT", "direction=GT")
    assert program_work(upwards, unknown_trips=1, read_conditions=True).dot_flops == once


def test_collectives_count_with_the_bytes_of_their_results():
    mesh = make_mesh({"context": 4}, jax.devices()[:4])

    def function(x):
        everything = lax.all_gather(x, "context", tiled=True)
        return lax.ppermute(x, "context", [(0, 1), (1, 0)]) + everything.sum()

    sharded = jax.shard_map(function, mesh=mesh, in_specs=P("context"), out_specs=P("context"))
    work = program_work(compiled_text(sharded, jnp.ones((8, 2), jnp.bfloat16)))
    assert work.collectives["all-gather"] == 1
    assert work.collectives["collective-permute"] == 1
    assert work.collective_bytes["collective-permute"] in (2 * 2 * 2, 2 * 2 * 4)  # CPUs may widen
