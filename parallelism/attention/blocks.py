"""Blocks of evenly spaced tokens, and which of them have anything to attend to in another.

All of it is NumPy on static numbers. Legend: C ranks, n blocks a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from parallelism.layout import Chunk

FAR: Final = 2**30
"""Further apart than any two tokens."""


@dataclass(frozen=True)
class AttentionMask:
    """Which earlier (and later) tokens a token attends to; itself always.

    `causal`: none that come later. `window`: only those fewer than `window` tokens away, so that 1
    leaves the token itself; None is no limit. `top_k`: of those, only so many, to which an index
    gives the best scores (selection.py). Raises ValueError for a window or a top_k below 1.
    """

    causal: bool = True
    window: int | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window}: a window holds at least the token itself")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: a query attends to one key at least")

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
