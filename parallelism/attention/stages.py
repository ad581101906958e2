"""What each rank computes with the keys it has at one time, and how it gets them.

All of it is NumPy on static numbers. Legend: C ranks, n blocks a rank, P pairs of blocks. The table
`meets` [C, n, C, n] says whether a query block of a rank has anything to do with a key block of a
rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from parallelism.attention.blocks import Blocks


@dataclass(frozen=True, eq=False)
class Fetch:
    """Blocks of keys that every destination takes from the rank `shift` behind it."""

    blocks: tuple[tuple[int, int], ...]  # runs [first, last) of the source's blocks
    routes: tuple[tuple[int, int], ...]  # (source, destination)


@dataclass(frozen=True, eq=False)
class Stage:
    """What each rank computes with the keys it has at one time.

    `pairs` lists (query block, key block), `count[r]` of them for rank r and then padding, by key
    block; `visits` lists (key block, its first pair, its last pair + 1). `hop` says how far behind
    the rank whose keys these are lies (ring); 0 where it does not matter.
    """

    pairs: np.ndarray  # int32 [C, P, 2]
    count: np.ndarray  # int32 [C]
    visits: np.ndarray  # int32 [C, V, 3]; those past the last are of no pairs
    key_start: np.ndarray  # int32 [C, number of key blocks]
    key_length: np.ndarray  # int32 [number of key blocks]
    hop: int = 0

    @property
    def even_count(self) -> int | None:
        """The number of pairs, if it is the same for every rank."""
        least, most = int(self.count.min()), int(self.count.max())
        return most if least == most else None


def _stage(meets: Sequence[np.ndarray], start: np.ndarray, length: np.ndarray, hop: int) -> Stage:
    """A stage from each rank's table bool [query blocks, key blocks] of who meets whom."""
    pairs = _padded([np.argwhere(table.T)[:, ::-1] for table in meets])
    count = np.array([np.count_nonzero(table) for table in meets], np.int32)
    return Stage(pairs, count, _padded(list(map(_visits, meets))), start, length, hop)


def _visits(table: np.ndarray) -> np.ndarray:
    """(key block, first pair, last pair + 1) of the key blocks that some query block meets."""
    sizes = np.count_nonzero(table, axis=0)
    ends = np.cumsum(sizes)
    blocks = np.flatnonzero(sizes)
    return np.stack([blocks, (ends - sizes)[blocks], ends[blocks]], axis=1)


def _padded(lists: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays [any, ...] as one int32 [number of them, most, ...], filled up with zeros."""
    most = max(1, *map(len, lists))
    shape = (len(lists), most, *lists[0].shape[1:])
    padded = np.zeros(shape, np.int32)
    for row, found in zip(padded, lists, strict=True):
        row[: len(found)] = found
    return padded


def stack_stages(stages: Sequence[Stage]) -> Stage:
    """Stages with one number of key blocks as one, whose arrays are [C, number of stages, ...]."""

    def lists(name: str) -> np.ndarray:
        return _padded([getattr(stage, name).swapaxes(0, 1) for stage in stages]).swapaxes(1, 2)

    return Stage(
        pairs=lists("pairs").swapaxes(0, 1),
        count=np.stack([stage.count for stage in stages], axis=1),
        visits=lists("visits").swapaxes(0, 1),
        key_start=np.stack([stage.key_start for stage in stages], axis=1),
        key_length=np.stack([stage.key_length for stage in stages]),
    )


def portion_starts(key: Blocks) -> np.ndarray:
    """Where the portions begin that ranks gather one at a time, int32 [portions, runs].

    There are as many portions as ranks, so that what is gathered at once is about one rank's share,
    or the next lower number that divides the blocks. Each holds a run of the first half of a rank's
    blocks and one of the second, the former taken from the front and the latter from the back:
    under a causal mask, zigzag and striped then give all ranks equal work in all portions.
    Two ranks, eight blocks each: [[0 6] [2 4]] are two portions of twice two blocks.
    """
    num_ranks, num_blocks = key.start.shape
    halves = 2 if num_blocks % 2 == 0 else 1
    per_half = num_blocks // halves
    portions = max(d for d in range(1, num_ranks + 1) if per_half % d == 0)
    offsets = per_half // portions * np.arange(portions, dtype=np.int32)
    return np.stack([offsets, per_half + offsets[::-1]][:halves], axis=1)


def gathered_stages(meets: np.ndarray, key: Blocks) -> tuple[Stage, ...]:
    """One stage a portion; the ranks' shares of it lie one behind the other."""
    num_ranks, starts = len(meets), portion_starts(key)
    size = len(key.length) // starts.size
    stages = []
    for runs in starts:
        blocks = (runs[:, None] + np.arange(size)).reshape(-1)
        tables = meets[:, :, :, blocks].reshape(num_ranks, meets.shape[1], -1)
        start = np.broadcast_to(key.start[:, blocks].reshape(1, -1), (num_ranks, tables.shape[2]))
        length = np.tile(key.length[blocks], len(key.start))
        stages.append(_stage(list(tables), start, length, hop=0))
    return tuple(stages)


def ring_stages(meets: np.ndarray, key: Blocks) -> tuple[Stage, ...]:
    """One stage a hop, without the hops at which no rank has anything to do."""
    ranks = np.arange(len(meets))
    stages = []
    for hop in range(key.start.shape[0]):
        source = (ranks - hop) % len(key.start)
        tables = meets[ranks, :, source]
        if hop == 0 or tables.any():
            stages.append(_stage(list(tables), key.start[source], key.length, hop))
    return tuple(stages)


def needed_fetches(meets: np.ndarray) -> tuple[Fetch, ...] | None:
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


def fetched_stage(meets: np.ndarray, key: Blocks, fetches: tuple[Fetch, ...]) -> Stage:
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
