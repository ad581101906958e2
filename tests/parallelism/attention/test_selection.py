"""Sparse attention, in which an index chooses the keys of each query, against a sort in NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import Layout
from parallelism.attention import (
    AttentionMask,
    AttentionSetup,
    Index,
    Request,
    attention,
    attention_and_index_loss,
    unsupported,
)
from parallelism.attention.selection import least_of_best
from tests.parallelism.attention import oracle
from tests.parallelism.attention.case import Case, difference, errors
from tests.quick_compile import QUICK_COMPILE

PACKED = ((7, 1, 9, 20), (48,))


@pytest.mark.parametrize(
    "case",
    [
        Case(top_k=5, cp=1, use_mesh=False),
        Case(top_k=1, cp=1, use_mesh=False, documents=PACKED),
        Case(top_k=5, layout="zigzag", cp=4, documents=PACKED),
        Case(top_k=7, layout="striped", cp=3, strategy="ring", num_kv_heads=8),
        Case(top_k=5, layout="contiguous", cp=2, strategy="ring", documents=PACKED, num_kv_heads=1),
        Case(top_k=3, cp=2, tensor=2, fsdp=2, window=11, sinks=True),
        Case(top_k=6, cp=4, causal=False, strategy="ring"),
        Case(top_k=48, cp=2),
    ],
    ids=lambda case: f"{case.strategy}-{case.layout}-cp{case.cp}-top{case.top_k}",
)
def test_attends_to_the_best_keys_alone(case):
    assert max(errors(case, QUICK_COMPILE).values()) < 1e-5


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_least_score_lies_between_the_last_chosen_and_the_next(count):
    rng = np.random.default_rng(count)
    scales = 10.0 ** rng.integers(-30, 30, (50, 1))
    scores = (scales * rng.standard_normal((50, 9))).astype(np.float32)
    ordered = -np.sort(-scores)
    least = np.asarray(least_of_best(jnp.asarray(scores), count))
    chosen = scores >= least[:, None]
    np.testing.assert_array_equal(chosen.sum(-1), count)
    assert (least <= ordered[:, count - 1]).all()
    assert (least > ordered[:, count]).all()


def test_neighbouring_floats_are_told_apart():
    for one in (np.float32(1), np.float32(3e-30), np.float32(-2.5)):
        scores = np.array([[one, np.nextafter(one, np.float32(np.inf)), -9.0]], np.float32)
        chosen = scores >= np.asarray(least_of_best(jnp.asarray(scores), 1))[:, None]
        assert chosen.tolist() == [[False, True, False]]


def test_keys_that_share_the_last_place_all_count():
    scores = jnp.array([[3.0, 1.0, 1.0, 1.0, 0.0, -0.0], [0.0, -0.0, -1.0, -2.0, -3.0, -4.0]])
    chosen = np.asarray(scores >= least_of_best(scores, 2)[:, None])
    np.testing.assert_array_equal(chosen.sum(-1), [4, 2])


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_query_with_few_keys_attends_to_all_of_them(count):
    scores = jnp.array([[1.0, 2.0, -jnp.inf, -jnp.inf, -jnp.inf, -jnp.inf], [-jnp.inf] * 6])
    np.testing.assert_array_equal(least_of_best(scores, count), [-np.inf, -np.inf])


def test_an_index_and_top_k_go_together():
    setup = AttentionSetup(layout=Layout("zigzag", 1))
    x = jnp.ones((1, 4, 1, 2))
    with pytest.raises(ValueError, match="top_k=3: an index and top_k go together"):
        attention(x, x, x, mask=AttentionMask(top_k=3), setup=setup)


@pytest.mark.parametrize(
    ("strategy", "kernel", "found"),
    [
        ("ulysses", "xla", "all_gather or ring would fit"),
        ("all_gather", "splash", "attention.kernel=auto or xla would fit"),
        ("all_gather", "cudnn", "attention.kernel=auto or xla would fit"),
    ],
)
def test_what_cannot_choose_keys_is_refused_by_name(strategy, kernel, found):
    setup = AttentionSetup(layout=Layout("zigzag", 2), strategy=strategy, kernel=kernel)
    reason = unsupported(setup, Request(mask=AttentionMask(top_k=9)))
    assert reason is not None
    assert "model.indexer.top_k=9" in reason
    assert found in reason


def index_oracle(case, weights_by_query):
    """Losses of the index [B, T], and the gradients of their weighted sum, in NumPy float64."""
    index = [np.asarray(x, np.float64) for x in case.index()]
    query, key, *_ = (np.asarray(x, np.float64) for x in case.arrays())
    place = np.arange(case.seq_len)
    mask = oracle.allowed(place, place, case.causal, case.window, case.segments)
    mask = oracle.best(mask, *index, case.top_k)
    key = np.repeat(key, case.num_heads // case.num_kv_heads, axis=2)
    scores = np.einsum("btnh,bsnh->bnts", query, key) * case.head_dim**-0.5
    attended = softmax(np.where(mask[:, None], scores, -np.inf)).mean(1)
    products = np.einsum("btid,bsd->btis", index[0], index[2])
    own = np.einsum("bti,btis->bts", index[1], np.maximum(products, 0))
    own = np.where(mask, own, -np.inf)
    share = softmax(own)
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = -np.where(mask, attended * np.log(share), 0.0).sum(-1)
    by_score = weights_by_query[..., None] * (share - attended)
    by_product = by_score[:, :, None] * index[1][..., None] * (products > 0)
    return losses, (
        np.einsum("btis,bsd->btid", by_product, index[2]),
        np.einsum("bts,btis->bti", by_score, np.maximum(products, 0)),
        np.einsum("btis,btid->bsd", by_product, index[0]),
    )


def softmax(scores):
    """Over the last dimension; zeros where all scores are -inf."""
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


@pytest.mark.parametrize(
    "case",
    [
        Case(top_k=5, cp=1, use_mesh=False, documents=PACKED),
        Case(top_k=5, cp=4, documents=PACKED),
        Case(top_k=7, layout="striped", cp=2, strategy="ring", tensor=2),
    ],
    ids=lambda case: f"{case.strategy}-{case.layout}-cp{case.cp}-top{case.top_k}",
)
def test_an_index_learns_what_the_attention_attends_to(case):
    setup, rng = case.setup, np.random.default_rng(3)
    by_query = rng.uniform(0.5, 1.5, (case.batch, case.seq_len)).astype(np.float32)
    fold = setup.layout.fold
    query, key, value, _ = (jnp.asarray(fold(x)) for x in case.arrays())
    segments = None if case.segments is None else jnp.asarray(fold(case.segments))
    index = Index(*(jnp.asarray(fold(x)) for x in case.index()))

    @functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
    def run(index, query):
        def losses(index, query):
            return attention_and_index_loss(
                query, key, value, mask=case.mask, setup=setup, index=index, segment_ids=segments
            )

        out, pull_back = jax.vjp(losses, index, query)
        zero = jnp.zeros_like(out[0])
        return out[1], *pull_back((zero, jnp.asarray(fold(by_query))))

    losses, found, by_attention = run(index, query)
    expected, gradients = index_oracle(case, by_query)
    assert not np.asarray(by_attention).any()
    for ours, right in zip((losses, *found), (expected, *gradients), strict=True):
        assert difference(np.asarray(setup.layout.unfold(ours)), right) < 1e-5
