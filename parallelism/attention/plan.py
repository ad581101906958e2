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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from parallelism.layout import Chunk, Layout

FAR: Final = 2**30
"""Further apart than any two tokens."""


@dataclass(frozen=True)
class AttentionMask:
    """Which earlier (and later) tokens a token attends to; itself always.

    `causal`: none that come later. `window`: only those fewer than `window` tokens away, so that 1
    leaves the token itself; None is no limit. Raises ValueError for a window below 1.
    """

    causal: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window}: a window holds at least the token itself")

    @property
    def reach(self) -> tuple[int, int]:
        """The least and the greatest (query index - key index) that is attended."""
        high = FAR if self.window is None else self.window - 1
        return (0 if self.causal else -high), high


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of one size that the slots of each rank are cut into, chunk by chunk.

    Block b of rank r holds the tokens start[r, b] + step * [0, ..., length[b] - 1]; where a chunk
    does not divide, its last block is padded to `size` slots.
    """

    start: np.ndarray  # int32 [C, n]
    length: np.ndarray  # int32 [n]
    size: int
    step: int
    num_chunks: int

    @property
    def padded(self) -> bool:
        """Whether any block has slots that hold no token."""
        return bool((self.length < self.size).any())


@dataclass(frozen=True, eq=False)
class Fetch:
    """Blocks of keys that every destination takes from the rank `shift` behind it."""

    blocks: tuple[tuple[int, int], ...]  # runs [first, last) of the source's blocks
    routes: tuple[tuple[int, int], ...]  # (source, destination)


@dataclass(frozen=True, eq=False)
class Stage:
    """What each rank computes with the keys it has at one time.

    `pairs` lists (query block, key block), `count[r]` of them for rank r and then padding. `hop`
    says how far behind the rank whose keys these are lies (ring); 0 where it does not matter.
    """

    pairs: np.ndarray  # int32 [C, P, 2]
    count: np.ndarray  # int32 [C]
    key_start: np.ndarray  # int32 [C, number of key blocks]
    key_length: np.ndarray  # int32 [number of key blocks]
    hop: int = 0

    @property
    def even_count(self) -> int | None:
        """The number of pairs, if it is the same for every rank."""
        least, most = int(self.count.min()), int(self.count.max())
        return most if least == most else None


@dataclass(frozen=True, eq=False)
class Plan:
    """The work of every rank. Equal only to itself: `plan_attention` returns the same one again."""

    query: Blocks
    key: Blocks
    stages: tuple[Stage, ...]
    fetches: tuple[Fetch, ...] | None = None  # None: all keys are gathered

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
        return Plan(query, key, _ring_stages(meets, key))
    fetches = _fetches(meets)
    if fetches is not None:
        return Plan(query, key, (_fetched_stage(meets, key, fetches),), fetches)
    return Plan(query, key, (_gathered_stage(meets, key),))


def cut_blocks(chunks: Sequence[Sequence[Chunk]], block_size: int) -> Blocks:
    """Cut the chunks of every rank into the fewest blocks of at most `block_size` tokens."""
    length, step = chunks[0][0].length, chunks[0][0].step
    assert all((c.length, c.step) == (length, step) for rank in chunks for c in rank)
    per_chunk = -(-length // block_size)
    size = -(-length // per_chunk)
    offsets = size * np.arange(per_chunk, dtype=np.int32)
    starts = np.array([[c.start for c in rank] for rank in chunks], np.int32)
    num_chunks = starts.shape[1]
    return Blocks(
        start=(starts[:, :, None] + step * offsets).reshape(len(chunks), -1),
        length=np.tile(np.minimum(size, length - offsets), num_chunks).astype(np.int32),
        size=size,
        step=step,
        num_chunks=num_chunks,
    )


def attended(query: Blocks, key: Blocks, mask: AttentionMask) -> np.ndarray:
    """Whether a query block of a rank attends to anything in a key block of a rank.

    bool [C, n, C, n]. Exact: the differences of two evenly spaced blocks are evenly spaced, so it
    is enough to look whether the least that is within reach is one of them.
    """
    low, high = mask.reach
    step = query.step
    query_end = query.start + step * (query.length - 1)
    key_end = key.start + step * (key.length - 1)
    least = query.start[:, :, None, None] - key_end
    least = np.where(least >= low, least, low + (least - low) % step)
    return least <= np.minimum(query_end[:, :, None, None] - key.start, high)


def _stage(meets: Sequence[np.ndarray], start: np.ndarray, length: np.ndarray, hop: int) -> Stage:
    """A stage from each rank's table bool [query blocks, key blocks] of who meets whom."""
    lists = [np.argwhere(table) for table in meets]
    count = np.array([len(pairs) for pairs in lists], np.int32)
    pairs = np.zeros((len(lists), max(1, count.max()), 2), np.int32)
    for rank, found in enumerate(lists):
        pairs[rank, : len(found)] = found
    return Stage(pairs, count, start, length, hop)


def stack_stages(stages: Sequence[Stage]) -> Stage:
    """Stages with one number of key blocks as one, whose arrays are [C, number of stages, ...]."""
    width = max(stage.pairs.shape[1] for stage in stages)
    pairs = [np.pad(s.pairs, ((0, 0), (0, width - s.pairs.shape[1]), (0, 0))) for s in stages]
    return Stage(
        pairs=np.stack(pairs, axis=1),
        count=np.stack([stage.count for stage in stages], axis=1),
        key_start=np.stack([stage.key_start for stage in stages], axis=1),
        key_length=np.stack([stage.key_length for stage in stages]),
    )


def _gathered_stage(meets: np.ndarray, key: Blocks) -> Stage:
    """All keys, in the order in which the ranks' shards lie one behind the other."""
    num_ranks = len(meets)
    start = np.broadcast_to(key.start.reshape(1, -1), (num_ranks, key.start.size))
    tables = meets.reshape(num_ranks, meets.shape[1], -1)
    return _stage(list(tables), start, np.tile(key.length, len(key.start)), hop=0)


def _ring_stages(meets: np.ndarray, key: Blocks) -> tuple[Stage, ...]:
    """One stage a hop, without the hops at which no rank has anything to do."""
    ranks = np.arange(len(meets))
    stages = []
    for hop in range(key.start.shape[0]):
        source = (ranks - hop) % len(key.start)
        tables = meets[ranks, :, source]
        if hop == 0 or tables.any():
            stages.append(_stage(list(tables), key.start[source], key.length, hop))
    return tuple(stages)


def _fetches(meets: np.ndarray) -> tuple[Fetch, ...] | None:
    """The blocks to fetch from other ranks, or None if gathering them all moves hardly more."""
    num_ranks, _, _, num_blocks = meets.shape
    ranks = np.arange(num_ranks)
    needs = np.asarray(meets.any(axis=1))  # [destination, source, block]
    fetches, moved = [], 0
    for shift in range(1, num_ranks):
        sources = (ranks - shift) % num_ranks
        needed = needs[ranks, sources]
        if needed.any():
            blocks = np.flatnonzero(needed.any(axis=0))
            routes = [(int(sources[d]), int(d)) for d in np.flatnonzero(needed.any(axis=1))]
            fetches.append(Fetch(_runs(blocks), tuple(routes)))
            moved += len(blocks)
    return tuple(fetches) if 2 * moved <= (num_ranks - 1) * num_blocks else None


def _runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as runs [first, last): [1, 2, 3, 7] -> ((1, 4), (7, 8))."""
    runs: list[tuple[int, int]] = []
    for number in map(int, numbers):
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return tuple(runs)


def _fetched_stage(meets: np.ndarray, key: Blocks, fetches: tuple[Fetch, ...]) -> Stage:
    """A rank's own blocks, then those of each fetch; nothing where a fetch passes a rank by."""
    num_ranks = len(meets)
    tables: list[list[np.ndarray]] = [[meets[r, :, r]] for r in range(num_ranks)]
    starts, lengths = [[key.start[r]] for r in range(num_ranks)], [key.length]
    for fetch in fetches:
        blocks = np.concatenate([np.arange(*run) for run in fetch.blocks])
        lengths.append(key.length[blocks])
        source_of = {destination: source for source, destination in fetch.routes}
        for r in range(num_ranks):
            source = source_of.get(r)
            there = source is not None
            tables[r].append(meets[r, :, source or 0][:, blocks] & there)
            starts[r].append(key.start[source or 0][blocks])
    joined = [np.concatenate(parts, axis=1) for parts in tables]
    start = np.stack([np.concatenate(parts) for parts in starts])
    return _stage(joined, start, np.concatenate(lengths), hop=0)


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
