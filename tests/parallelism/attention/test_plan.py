"""Plans against numbers worked out by hand and against tables of every token pair."""

from __future__ import annotations

import numpy as np
import pytest

from parallelism.attention.blocks import AttentionMask, cut_blocks
from parallelism.attention.plan import attended_pairs, balance, plan_attention
from parallelism.layout import Layout

CAUSAL = AttentionMask()


def plan_of(name, cp, seq_len, mask=CAUSAL, *, block_size=10**9, strategy="all_gather"):
    chunks = Layout(name, cp).chunks(seq_len)
    return plan_attention(chunks, chunks, mask, block_size, strategy)


def listed_pairs(plan, rank):
    """Per stage: (query block, key block) pairs of one rank, as first tokens of the blocks."""
    return [
        {
            (int(plan.query.start[rank, i]), int(stage.key_start[rank, j]))
            for i, j in stage.pairs[rank, : stage.count[rank]]
        }
        for stage in plan.stages
    ]


def test_zigzag_at_cp_2_lists_the_five_chunk_pairs_of_each_rank():
    plan = plan_of("zigzag", 2, 8)  # chunks of 2 tokens: rank 0 holds 0 and 6, rank 1 holds 2 and 4
    assert listed_pairs(plan, 0) == [{(0, 0), (6, 0), (6, 2), (6, 4), (6, 6)}]
    assert listed_pairs(plan, 1) == [{(2, 0), (2, 2), (4, 0), (4, 2), (4, 4)}]


@pytest.mark.parametrize("cp", [2, 3, 4, 5, 8, 16])
def test_zigzag_gives_every_rank_2cp_plus_1_chunk_pairs(cp):
    gathered = plan_of("zigzag", cp, 2 * cp * 6)
    assert gathered.stages[0].even_count == 2 * cp + 1
    ring = plan_of("zigzag", cp, 2 * cp * 6, strategy="ring")
    assert [stage.even_count for stage in ring.stages] == [3] + [2] * (cp - 1)


@pytest.mark.parametrize(("name", "cp", "blocks"), [("zigzag", 4, 8), ("striped", 3, 12)])
def test_portions_are_a_ranks_share_and_have_equal_work_on_all_ranks(name, cp, blocks):
    block = 6  # `blocks` of them a rank
    plan = plan_of(name, cp, cp * blocks * block, block_size=block)
    assert len(plan.stages) == {"zigzag": 4, "striped": 3}[name]
    evens = {stage.even_count for stage in plan.stages}
    assert len(evens) == 1
    assert None not in evens
    assert {stage.key_start.shape[1] * len(plan.stages) for stage in plan.stages} == {cp * blocks}
    tokens = np.concatenate([np.sort(stage.key_start[0]) for stage in plan.stages])
    assert sorted(tokens.tolist()) == sorted(plan.key.start.reshape(-1).tolist())


def test_attended_pairs_match_the_published_figures():
    assert attended_pairs(Layout("zigzag", 4), 64, CAUSAL).tolist() == [520] * 4
    assert attended_pairs(Layout("contiguous", 4), 64, CAUSAL).tolist() == [136, 392, 648, 904]


MASKS = [
    CAUSAL,
    AttentionMask(causal=False),
    AttentionMask(window=1),
    AttentionMask(window=3),
    AttentionMask(window=17),
    AttentionMask(causal=False, window=4),
]


@pytest.mark.parametrize("strategy", ["all_gather", "ring"])
@pytest.mark.parametrize("name", ["zigzag", "striped", "contiguous"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_block_pair_is_listed_exactly_if_some_token_pair_in_it_is_attended(strategy, name, mask):
    cp, seq_len = 3, 42  # chunks of 7 or 14 do not divide into blocks of at most 4
    layout = Layout(name, cp)
    plan = plan_of(name, cp, seq_len, mask, block_size=4, strategy=strategy)
    order = layout.permutation(seq_len).reshape(cp, -1)
    for rank in range(cp):
        expected = set()
        for query in np.split(order[rank], layout.chunks_per_rank):
            for key in np.split(order.reshape(-1), cp * layout.chunks_per_rank):
                expected |= brute_force_pairs(query, key, mask, plan.query.size)
        listed = listed_pairs(plan, rank)
        assert sum(map(len, listed)) == len(expected)
        assert set().union(*listed) == expected


def brute_force_pairs(query, key, mask, size):
    """Attended block pairs of two chunks, by looking at every token pair."""
    distance = query[:, None] - key
    low, high = mask.reach
    rows, columns = np.nonzero((distance >= low) & (distance <= high))
    return {
        (int(query[r // size * size]), int(key[c // size * size]))
        for r, c in zip(rows, columns, strict=True)
    }


@pytest.mark.parametrize("name", ["zigzag", "striped", "contiguous"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_attended_pairs_count_every_token_pair(name, mask):
    order = Layout(name, 4).permutation(48).reshape(4, -1)
    low, high = mask.reach
    distance = order[:, :, None] - np.arange(48)
    expected = ((distance >= low) & (distance <= high)).sum((1, 2))
    assert attended_pairs(Layout(name, 4), 48, mask).tolist() == expected.tolist()


@pytest.mark.parametrize("cp", [1, 2, 3, 4, 5, 6, 8, 16, 64])
def test_zigzag_is_balanced_and_wastes_at_most_six_percent_at_64_blocks(cp):
    block, blocks = 32, max(64, 4 * cp) // (2 * cp) * 2 * cp
    seq_len = block * blocks
    attended = attended_pairs(Layout("zigzag", cp), seq_len, CAUSAL)
    assert balance(attended) <= 1.01
    executed = plan_of("zigzag", cp, seq_len, block_size=block).executed_pairs
    assert balance(executed) <= 1.01
    least = seq_len * (seq_len + 1) // 2
    assert executed.sum() <= 1.06 * least


def test_blocks_are_as_even_as_a_chunk_allows():
    blocks = cut_blocks(Layout("zigzag", 2).chunks(40), 4)  # chunks of 10: blocks of 4, 4 and 2
    assert blocks.size == 4
    assert blocks.length.tolist() == [4, 4, 2, 4, 4, 2]
    assert blocks.start.tolist() == [[0, 4, 8, 30, 34, 38], [10, 14, 18, 20, 24, 28]]
    assert cut_blocks(Layout("zigzag", 2).chunks(36), 5).length.tolist() == [5, 4, 5, 4]


def test_a_window_fetches_only_the_tails_of_the_neighbouring_chunks():
    plan = plan_of("zigzag", 4, 64, AttentionMask(window=3), block_size=2)
    # Chunks have 8 tokens, 4 blocks. Rank r needs the end of chunk r-1, held by rank r-1, and of
    # chunk 6-r, held by rank r+1: the last block of the first and of the second chunk there.
    assert plan.fetches is not None
    assert [(f.blocks, f.routes) for f in plan.fetches] == [
        (((3, 4),), ((0, 1), (1, 2), (2, 3))),
        (((7, 8),), ((1, 0), (2, 1), (3, 2))),
    ]
    assert plan_of("zigzag", 4, 64, block_size=2).fetches is None


def test_a_ring_skips_the_hops_that_a_window_does_not_need():
    plan = plan_of("zigzag", 8, 128, AttentionMask(window=5), strategy="ring")
    assert [stage.hop for stage in plan.stages] == [0, 1, 7]
    plan = plan_of("contiguous", 8, 128, AttentionMask(window=5), strategy="ring")
    assert [stage.hop for stage in plan.stages] == [0, 1]


def test_a_window_below_one_is_refused():
    with pytest.raises(ValueError, match="window=0"):
        AttentionMask(window=0)
