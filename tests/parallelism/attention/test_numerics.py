"""Hard numbers: large logits, nothing to attend to, bfloat16, uneven sizes, positions, sinks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import Layout
from parallelism.attention import AttentionMask, AttentionSetup, attention
from tests.parallelism.attention import oracle
from tests.parallelism.attention.case import Case, computed, difference, errors, expected
from tests.quick_compile import QUICK_COMPILE


@partial(jax.jit, static_argnames="scale")
def attend(query, key, value, positions=None, scale=None):
    """Causal attention on one device."""
    setup = AttentionSetup(layout=Layout("contiguous", 1), block_size=4)
    return attention(
        query, key, value, mask=AttentionMask(), setup=setup, positions=positions, scale=scale
    )


@pytest.mark.parametrize("strategy", ["all_gather", "ring"])
def test_logits_of_200_and_segments_of_padding(strategy):
    case = Case(
        strategy=strategy,
        query_scale=20.0,
        scale=1.0,
        documents=((1, 7, 9), (20, 3)),
    )
    query, key, *_ = case.arrays()
    logits = np.einsum("btnh,bsnh->bnts", query, np.repeat(key, 2, axis=2))
    assert logits.min() < -200
    assert logits.max() > 200
    assert max(errors(case).values()) <= 1e-5


@pytest.mark.parametrize("strategy", ["all_gather", "ring", "ulysses"])
def test_rows_and_shards_with_nothing_to_attend_to_give_zeros(strategy):
    # Contiguous: ranks 1 to 3 hold only padding in row 0, and all do in row 1.
    case = Case(strategy=strategy, layout="contiguous", documents=((12,), ()))
    found = computed(case)
    for name, right in expected(case).items():
        assert difference(found[name], right) <= 1e-5
        assert (found[name][0, :12] != 0).any()
        assert (found[name][0, 12:] == 0).all()
        assert (found[name][1] == 0).all()


@pytest.mark.slow
def test_bfloat16_error_does_not_grow_with_cp():
    case = Case(cp=1, seq_len=256, block_size=32, batch=1, dtype="bfloat16")
    alone = errors(case)
    assert max(alone.values()) < 0.02
    cases = [("ring", 2), ("ring", 4), ("ring", 8), ("all_gather", 4), ("all_gather", 8)]
    for strategy, cp in [*cases, ("ulysses", 8)]:
        split = errors(replace(case, strategy=strategy, cp=cp))
        assert all(x <= 1.5 * alone[name] for name, x in split.items()), (strategy, cp)


UNEVEN = {
    "block_above_shard": Case(block_size=128, seq_len=40),
    "block_of_one": Case(block_size=1, seq_len=16),
    "window_between_shard_and_sequence": Case(window=13, seq_len=48),
    "window_of_one": Case(window=1),
    "prime_chunks": Case(cp=2, seq_len=44, block_size=4, strategy="ring", causal=False),
    "wide_values": Case(value_dim=6, head_dim=3, scale=0.3),
    "narrow_values_in_a_ring": Case(value_dim=2, strategy="ring", layout="striped", sinks=True),
    "folded_on_one_device": Case(use_mesh=False, layout="striped", documents=((7, 9), (48,))),
    "six_ranks": Case(cp=6, seq_len=24, num_heads=6, num_kv_heads=2, strategy="ulysses"),
    "all_features": Case(
        strategy="ring", window=20, soft_cap=2.0, sinks=True, documents=((7, 1, 9, 20), (47,))
    ),
}


@pytest.mark.parametrize("case", UNEVEN.values(), ids=UNEVEN)
def test_sizes_that_do_not_divide_and_features_together(case):
    assert max(errors(case, QUICK_COMPILE).values()) <= 1e-5


MESHES = {
    "batch_and_heads": Case(cp=2, fsdp=2, tensor=2, sinks=True),
    "batch_that_does_not_divide": Case(cp=2, fsdp=2, tensor=2, batch=3),
    "one_kv_head_over_two": Case(cp=2, tensor=2, num_kv_heads=1, strategy="ring"),
    "heads_that_do_not_divide": Case(cp=2, tensor=2, num_heads=3, num_kv_heads=3),
    "ulysses_and_tensor": Case(
        cp=2, tensor=2, fsdp=2, num_kv_heads=2, strategy="ulysses", sinks=True
    ),
    "three_kv_heads_over_two": Case(cp=2, num_heads=6, num_kv_heads=3, strategy="ulysses"),
}


@pytest.mark.parametrize("case", MESHES.values(), ids=MESHES)
def test_other_mesh_axes_and_heads_that_do_not_divide(case):
    assert max(errors(case, QUICK_COMPILE).values()) <= 1e-5


@pytest.mark.parametrize("strategy", ["all_gather", "ring", "ulysses"])
def test_positions_given_or_not_are_the_same_attention(strategy):
    case = Case(strategy=strategy, window=20, documents=((7, 9, 20), (48,)))
    assert max(errors(replace(case, with_positions=True), QUICK_COMPILE).values()) <= 1e-5


def test_positions_of_queries_and_keys_can_differ():
    draw = np.random.default_rng(0).standard_normal
    query, key, value = (draw((1, n, 2, 4)).astype(np.float32) for n in (3, 8, 8))
    queries_at, keys_at = np.array([[7, 2, 5]], np.int32), np.arange(8, dtype=np.int32)[None]
    out = attend(query, key, value, (queries_at, keys_at))
    right, _ = oracle.attention(query, key, value, oracle.allowed(queries_at, keys_at))
    np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-6)


def test_a_row_of_one_document_attends_as_if_it_stood_alone():
    packed = Case(documents=((7, 1, 9, 20), (48,)), layout="contiguous")
    query, key, value, _ = (x[:1, 8:17] for x in packed.arrays())  # the document of 9
    alone = attend(query, key, value)
    np.testing.assert_allclose(computed(packed)["out"][:1, 8:17], alone, atol=1e-5)


def test_one_key_with_a_logit_of_80_in_bfloat16():
    key = np.zeros((1, 8, 1, 1), np.float32)
    key[0, 2] = 80
    value = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in (np.ones_like(key), key, value)]

    out = attend(*inputs, scale=1.0)
    assert out.ravel().tolist() == [0, 0.5, 2, 2, 2, 2, 2, 2]
    gradients = jax.grad(lambda *x: attend(*x, scale=1.0).sum(), (0, 1, 2))(*inputs)
    assert all(bool(jnp.isfinite(x).all()) for x in gradients)


def test_the_gradient_of_attention_agrees_with_finite_differences():
    case = Case(cp=2, seq_len=8, batch=1, num_heads=2, num_kv_heads=1, sinks=True, soft_cap=2.0)
    query, key, value, gradient = (x.astype(np.float64) for x in case.arrays())
    index = np.arange(8)
    mask = oracle.allowed(index, index)
    step = 1e-6 * np.random.default_rng(2).standard_normal(query.shape)
    ends = [
        oracle.attention(
            query + sign * step, key, value, mask, sinks=case.sink_scores(), soft_cap=2.0
        )[0]
        for sign in (1, -1)
    ]
    slope = ((ends[0] - ends[1]) * gradient).sum() / 2
    found = computed(case)["query"]
    assert (found * step).sum() == pytest.approx(slope, rel=1e-4)
    assert (expected(case)["query"] * step).sum() == pytest.approx(slope, rel=1e-7)
