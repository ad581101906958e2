"""Which pieces of documents share a row: best fit, planned once from the lengths alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PackingPlan:
    """Rows as runs of pieces; row r holds the pieces first_piece[r] .. first_piece[r + 1] - 1."""

    first_piece: np.ndarray
    """int64 [rows + 1]."""
    documents: np.ndarray
    """int64 [pieces]: the document that the piece is from."""
    starts: np.ndarray
    """int64 [pieces]: where the piece starts in its document, in tokens."""
    sizes: np.ndarray
    """int64 [pieces]: tokens in the piece, at most seq_len."""

    @property
    def num_rows(self) -> int:
        return len(self.first_piece) - 1


def plan_packing(lengths: np.ndarray, seq_len: int) -> PackingPlan:
    """Cuts documents into pieces of seq_len and packs what is left of each by best fit, decreasing.

    Whole pieces come first, a row each, in the order of the documents. Then the remainders: the
    longest first, each into the fullest row that still has room for it. Every token is in exactly
    one piece. lengths=[6, 3, 2, 1], seq_len=4 -> rows of the pieces (document, start, size):
    [(0,0,4)] [(1,0,3) (3,0,1)] [(0,4,2) (2,0,2)].
    """
    whole_counts = lengths // seq_len
    whole_documents = np.repeat(np.arange(len(lengths)), whole_counts)
    first_of_document = np.cumsum(whole_counts) - whole_counts
    place = np.arange(len(whole_documents)) - np.repeat(first_of_document, whole_counts)
    left_over = lengths % seq_len
    rows = _best_fit(left_over, seq_len)
    packed = np.array([document for row in rows for document in row], np.int64)
    row_sizes = np.array([len(row) for row in rows], np.int64)
    row_stops = np.concatenate([np.ones(len(whole_documents), np.int64), row_sizes]).cumsum()
    return PackingPlan(
        first_piece=np.concatenate([[0], row_stops]),
        documents=np.concatenate([whole_documents, packed]),
        starts=np.concatenate([place, whole_counts[packed]]) * seq_len,
        sizes=np.concatenate([np.full(len(whole_documents), seq_len), left_over[packed]]),
    )


def _best_fit(sizes: np.ndarray, capacity: int) -> list[list[int]]:
    """Packs items into bins; items of size 0 are left out. Ties go to the earlier item and bin."""
    bins: list[list[int]] = []
    by_room: dict[int, deque[int]] = {}  # bins with that room, the earliest first
    rooms: list[int] = []  # the keys of by_room, sorted
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        if size == 0:
            break
        at = bisect_left(rooms, size)
        if at == len(rooms):
            number, room = len(bins), capacity
            bins.append([])
        else:
            room = rooms[at]
            number = by_room[room].popleft()
            if not by_room[room]:
                del by_room[room], rooms[at]
        bins[number].append(item)
        if room > size:
            if room - size not in by_room:
                by_room[room - size] = deque()
                insort(rooms, room - size)
            by_room[room - size].append(number)
    return bins
