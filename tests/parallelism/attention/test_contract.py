"""One contract for every strategy: forward and every gradient against the float64 oracle.

Every combination of strategy, layout and cp runs; masks, packing and head ratios are dealt out over
them so that every two values of any two features meet in some case, and as many threes as can be.
"""

from __future__ import annotations

import itertools

import pytest

from tests.parallelism.attention.case import Case, errors
from tests.quick_compile import QUICK_COMPILE

STRATEGIES = ("all_gather", "ring", "ulysses")
LAYOUTS = ("zigzag", "striped", "contiguous")
DEGREES = (1, 2, 3, 4, 8)  # 48 tokens: 48 to 6 a rank
MASKS = {
    "causal": {},
    "full": {"causal": False},
    "short_window": {"window": 3},
    "long_window": {"window": 20},
    "full_window": {"causal": False, "window": 9},
    "soft_cap": {"soft_cap": 1.5},
    "sinks": {"sinks": True},
}
PACKED = {"whole": None, "packed": ((7, 1, 9, 20), (48,))}  # the first row ends in padding
HEADS = ("mha", "gqa", "mqa")


def build(features):
    strategy, layout, cp, mask, packed, heads = features
    num_heads = 6 if cp == 3 else 8  # ulysses shares them among cp ranks
    num_kv_heads = {"mha": num_heads, "gqa": num_heads // 2, "mqa": 1}[heads]
    return Case(
        strategy=strategy,
        layout=layout,
        cp=cp,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        documents=PACKED[packed],
        **MASKS[mask],
    )


def meetings(features, count=2):
    """All sets of `count` values that meet in a case, each value with the place of its feature."""
    return set(itertools.combinations(enumerate(features), count))


def pairwise_features():
    """Every (strategy, layout, cp), each with the mask, packing and heads that meet most anew."""
    pairs, threes, chosen = set(), set(), []
    dealt = list(itertools.product(MASKS, PACKED, HEADS))
    for fixed in itertools.product(STRATEGIES, LAYOUTS, DEGREES):
        cases = [(*fixed, *rest) for rest in dealt]
        best = max(cases, key=lambda c: (len(meetings(c) - pairs), len(meetings(c, 3) - threes)))
        chosen.append(best)
        pairs |= meetings(best)
        threes |= meetings(best, 3)
    return chosen


FEATURES = pairwise_features()


def test_the_cases_cover_every_two_values_of_any_two_features():
    domains = (STRATEGIES, LAYOUTS, DEGREES, MASKS, PACKED, HEADS)
    wanted = {
        ((i, a), (j, b))
        for (i, left), (j, right) in itertools.combinations(enumerate(domains), 2)
        for a, b in itertools.product(left, right)
    }
    assert wanted == set().union(*map(meetings, FEATURES))


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: "-".join(map(str, f)))
def test_forward_and_gradients_equal_the_oracle(features):
    assert max(errors(build(features), QUICK_COMPILE).values()) <= 1e-5
