"""How evenly attention is shared among context ranks, by strategy and by where rows are folded."""

from __future__ import annotations

import pytest

from tests.training.small import small_setup
from training.plan import rank_pairs

CAUSAL = 48 * 49 // 2
ORDERED = [78, 222, 366, 510]  # sums of 1..12, 13..24, 25..36 and 37..48


@pytest.mark.parametrize(
    ("strategy", "layout", "reorder", "expected"),
    [
        ("ring", "zigzag", "batch", [CAUSAL // 4] * 4),
        ("all_gather", "zigzag", "attention", [CAUSAL // 4] * 4),
        ("all_gather", "contiguous", "batch", ORDERED),
        ("ulysses", "contiguous", "batch", [CAUSAL // 4] * 4),
        ("ulysses", "zigzag", "attention", [CAUSAL // 4] * 4),
    ],
)
def test_pairs_are_those_that_a_rank_attends_to(strategy, layout, reorder, expected):
    words = (f"strategy={strategy}", f"layout={layout}", f"reorder={reorder}")
    setup = small_setup(
        "mesh.context=4", *(f"context_parallel.{word}" for word in words), num_devices=4
    )
    assert rank_pairs(setup).tolist() == expected


def test_ulysses_in_a_contiguous_model_folds_nothing():
    words = ("context_parallel.strategy=ulysses", "context_parallel.reorder=attention")
    placement = small_setup("mesh.context=4", *words, num_devices=4).model.placement
    assert placement.attention.layout == placement.row_layout
