"""Which blocks of queries meet which blocks of keys, decided before anything runs.

Every rank's slots are cut into blocks of evenly spaced tokens, and a plan lists, rank by rank, the
pairs (query block, key block) that hold something to attend to. Pairs that are wholly masked are
never listed, so no rank computes them. Under zigzag and a causal mask every rank gets the same
number of pairs: with a block as long as a chunk, exactly 2*cp + 1, of which 2 lie on the diagonal:

    zigzag, cp=2, 4 chunks:  rank 0 holds chunks 0 and 3, rank 1 holds 1 and 2
    rank 0   0-0   3-0 3-1 3-2 3-3          rank 1   1-0 1-1   2-0 2-1 2-2

All of it is NumPy on static numbers. Legend: C ranks, n blocks a rank, P pairs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from parallelism.attention.blocks import AttentionMask, Blocks, attended, cut_blocks
from parallelism.attention.stages import (
    Fetch,
    Stage,
    fetched_stage,
    gathered_stages,
    needed_fetches,
    ring_stages,
)
from parallelism.layout import Chunk, Layout


@dataclass(frozen=True, eq=False)
class Plan:
    """The work of every rank. Equal only to itself: `plan_attention` returns the same one again."""

    query: Blocks
    key: Blocks
    stages: tuple[Stage, ...]
    fetches: tuple[Fetch, ...] | None = None  # None: all keys are gathered, portion by portion

    @property
    def executed_pairs(self) -> np.ndarray:
        """Pairs (query token, key token) that each rank computes, masked ones too, int64 [C]."""
        count = sum(stage.count.astype(np.int64) for stage in self.stages)
        return np.asarray(count) * self.query.size * self.key.size


@functools.lru_cache(maxsize=64)
def plan_attention(
    query_chunks: tuple[tuple[Chunk, ...], ...],
    key_chunks: tuple[tuple[Chunk, ...], ...],
    mask: AttentionMask,
    block_size: int,
    strategy: str,
) -> Plan:
    """Plan the work of each rank; chunks are given rank by rank, as `Layout.chunks` does.

    `strategy` is ring, where the keys of one rank are there at a time, or anything else, where they
    are all there at once.
    """
    query, key = cut_blocks(query_chunks, block_size), cut_blocks(key_chunks, block_size)
    meets = attended(query, key, mask)
    if strategy == "ring":
        return Plan(query, key, ring_stages(meets, key))
    fetches = needed_fetches(meets)
    if fetches is not None:
        return Plan(query, key, (fetched_stage(meets, key, fetches),), fetches)
    return Plan(query, key, gathered_stages(meets, key))


def attended_pairs(layout: Layout, seq_len: int, mask: AttentionMask) -> np.ndarray:
    """Pairs (query token, key token) that the mask lets each rank attend to, int64 [C].

    zigzag, 64 tokens, cp=4, causal -> [520 520 520 520]; contiguous -> [136 392 648 904]
    """
    low, high = mask.reach
    index = layout.permutation(seq_len).astype(np.int64).reshape(layout.cp, -1)
    first, last = np.maximum(index - high, 0), np.minimum(index - low, seq_len - 1)
    return (last - first + 1).sum(axis=1)


def balance(pairs: np.ndarray) -> float:
    """The busiest rank's pairs over the mean: 1 is perfect, cp is one rank doing everything."""
    return float(pairs.max() / pairs.mean())
