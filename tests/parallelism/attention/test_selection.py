"""Sparse attention, in which an index chooses the keys of each query, against a sort in NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import Layout
from parallelism.attention import AttentionMask, AttentionSetup, Request, attention, unsupported
from parallelism.attention.selection import least_of_best
from tests.parallelism.attention.case import Case, errors
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
