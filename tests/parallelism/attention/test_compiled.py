"""What the compiled programs of attention hold: collectives, FLOPs, sizes, and in which order."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from parallelism.attention import attention
from parallelism.attention.plan import plan_attention
from parallelism.hlo import array_shapes, program_work
from tests.parallelism.attention.case import Case, folded_inputs

ITEM = 4  # bytes of a float32 or an int32


def attend(case, query, key, value, segments):
    return attention(
        query, key, value, mask=case.mask, setup=case.setup, segment_ids=segments, soft_cap=None
    )


def inputs_of(case):
    """Query, key, value and segment ids, on the devices of the case's mesh."""
    (query, key, value, _), _ = folded_inputs(case)
    segments = jnp.ones((case.batch, case.seq_len), jnp.int32)
    sharding = NamedSharding(case.setup.mesh, P(None, "context"))
    return jax.device_put((query, key, value, segments), sharding)


def forward_text(case):
    function = jax.jit(lambda *inputs: attend(case, *inputs))
    return function.lower(*inputs_of(case)).compile().as_text()


def two_layers_text(case):
    """Gradients through two scanned layers, so that forward and backward are two loops."""

    def loss(query, key, value, segments):
        def layer(x, _):
            heads = x[:, :, : key.shape[2]]
            return attend(case, x, key * heads, value * heads, segments), None

        return jax.lax.scan(layer, query, None, length=2)[0].sum()

    *inputs, segments = inputs_of(case)
    function = jax.jit(jax.grad(loss, (0, 1, 2)))
    return function.lower(*inputs, segments if case.documents else None).compile().as_text()


def sizes(case):
    """Bytes of one shard of: queries, keys, values and segment ids."""
    tokens = case.batch * case.seq_len // case.cp * ITEM
    queries = tokens * case.num_heads * case.head_dim
    keys = tokens * case.num_kv_heads * case.head_dim
    return queries, keys, tokens * case.num_kv_heads * case.value_dim, tokens


def test_all_gather_brings_keys_values_and_segment_ids_and_nothing_else():
    case = Case(strategy="all_gather", seq_len=64, num_kv_heads=2)
    _, keys, values, tokens = sizes(case)
    work = program_work(forward_text(case))
    portions = 2  # of the two blocks of each chunk
    assert work.collectives == {"all-gather": portions * 3}
    assert work.collective_bytes["all-gather"] == 4 * (keys + values + tokens)
    # Per layer: forward two; backward two again, and two sums of gradients. None are kept.
    both = program_work(two_layers_text(case))
    assert both.collectives["all-gather"] == 2 * portions * 4
    assert both.collectives["reduce-scatter"] == 2 * portions * 2
    assert both.collective_bytes["reduce-scatter"] == 2 * (keys + values)


def test_a_window_brings_only_the_blocks_it_reaches():
    case = Case(strategy="all_gather", seq_len=128, window=4, block_size=4, num_kv_heads=2)
    _, keys, values, tokens = sizes(case)
    work = program_work(forward_text(case), unknown_trips=1)
    # The last of the four blocks of each of the two neighbouring chunks: an eighth of a shard each.
    assert work.collectives == {"collective-permute": 6}
    assert work.collective_bytes["collective-permute"] == 2 * (keys + values + tokens) // 8
    assert "all-gather" not in program_work(two_layers_text(case), unknown_trips=1).collectives


@pytest.mark.parametrize("cp", [2, 5])
def test_a_ring_sends_keys_and_values_once_around(cp):
    case = Case(strategy="ring", cp=cp, seq_len=80, num_kv_heads=2)
    _, keys, values, tokens = sizes(case)
    work = program_work(forward_text(case))
    assert work.collectives == {"collective-permute": 3 * (cp - 1)}
    assert work.collective_bytes["collective-permute"] == (cp - 1) * (keys + values + tokens)
    # Backward the same, and the gradients of keys and values once around and home.
    both = program_work(two_layers_text(case)).collectives
    assert both["collective-permute"] == 2 * (2 * 2 * (cp - 1) + 2 * cp)


def test_a_ring_starts_the_next_hop_before_it_computes():
    text = forward_text(Case(strategy="ring", seq_len=64, block_size=8))
    bodies = [body for body in text.split("\n}\n") if " collective-permute(" in body]
    assert len(bodies) == 2  # the first hop in the entry, the others in one loop
    for body in bodies:
        lines = body.splitlines()
        sends = [i for i, line in enumerate(lines) if " collective-permute(" in line]
        computes = [i for i, line in enumerate(lines) if re.search(r" (while|dot)\(", line)]
        assert max(sends) < min(computes)


def test_ulysses_exchanges_each_array_once():
    case = Case(strategy="ulysses", seq_len=64, num_kv_heads=4)
    queries, keys, values, tokens = sizes(case)
    work = program_work(forward_text(case))
    assert work.collectives == {"all-to-all": 4, "all-gather": 1}
    assert work.collective_bytes["all-to-all"] == queries + keys + values + queries
    assert work.collective_bytes["all-gather"] == 4 * tokens
    assert program_work(two_layers_text(case)).collectives["all-to-all"] == 2 * 8


@pytest.mark.parametrize("strategy", ["all_gather", "ring", "ulysses"])
def test_no_gather_and_neither_sequence_by_sequence_nor_all_keys_at_once(strategy):
    case = Case(
        strategy=strategy, seq_len=256, num_kv_heads=8, block_size=8, batch=1, documents=((256,),)
    )
    text = two_layers_text(case)
    assert not re.search(r" gather\(", text)
    largest, all_keys = max(map(math.prod, array_shapes(text))), case.seq_len * 8 * case.head_dim
    assert largest <= all_keys / 2  # a rank's quarter, kept for each of two layers
    assert largest < case.seq_len**2 / 2


@pytest.mark.parametrize(
    ("strategy", "layout", "cp"),
    [
        ("all_gather", "zigzag", 4),
        ("all_gather", "striped", 2),
        ("ring", "zigzag", 3),
        ("ulysses", "zigzag", 4),
    ],
)
def test_the_compiled_program_computes_the_planned_pairs(strategy, layout, cp):
    case = Case(
        strategy=strategy, layout=layout, cp=cp, seq_len=192, block_size=8, num_heads=12, batch=1
    )
    chunks = case.setup.layout.chunks(case.seq_len)
    executed = plan_attention(
        chunks, chunks, case.mask, case.block_size, "all_gather"
    ).executed_pairs
    assert len(set(executed.tolist())) == 1
    flops = program_work(forward_text(case)).dot_flops
    assert flops == executed[0] * case.num_heads * 2 * (case.head_dim + case.value_dim)
    causal = case.seq_len * (case.seq_len + 1) // 2
    assert executed.sum() == pytest.approx(causal, rel=0.1)


def test_sums_and_exponentials_are_float32_with_bfloat16_inputs():
    case = Case(strategy="all_gather", dtype="bfloat16", sinks=True, soft_cap=3.0)

    def loss(query, key, value, segments):
        return attend(case, query, key, value, segments).sum()

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss, (0, 1, 2)))(*inputs_of(case))
    found = {"dot_general": 0, "exp": 0, "while": 0, "reduce_scatter": 0}
    for equation in equations(jaxpr.jaxpr):
        name = equation.primitive.name
        if name in found:
            found[name] += 1
            assert all(x.aval.dtype != jnp.bfloat16 for x in equation.outvars)
    assert min(found.values()) >= 2
    assert [x.dtype for x in jaxpr.out_avals[1:]] == [jnp.bfloat16] * 3


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def test_remat_and_scan_give_the_same_gradients():
    case = Case(strategy="ring", seq_len=32, block_size=4)
    query, key, value, segments = inputs_of(case)

    def loss(query, key, value, remat):
        def layer(x, _):
            return x + attend(case, x, key, value, segments), None

        body = jax.checkpoint(layer) if remat else layer
        return (jax.lax.scan(body, query, None, length=2)[0] ** 2).sum()

    gradients = jax.jit(jax.grad(loss, (0, 1, 2)), static_argnums=3)
    for plain, again in zip(
        gradients(query, key, value, False), gradients(query, key, value, True), strict=True
    ):
        np.testing.assert_allclose(plain, again, rtol=1e-6, atol=1e-6)
