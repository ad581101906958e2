"""Rows of seq_len tokens cut from documents, with targets, weights, positions and segments."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from data.documents import Documents
from data.packing import plan_packing

Batch = dict[str, np.ndarray]
"""tokens, targets, positions, segment_ids int32 and weights float32, [T] a row or [B, T]."""


class Rows(Protocol):
    """Every row of a split, at any place."""

    num_rows: int
    num_tokens: int
    """Tokens that stand in the rows as inputs, EOS included, padding not."""
    num_slots: int
    """Slots of all rows: num_rows * seq_len."""

    def row(self, index: int) -> Batch:
        """One row: arrays of shape [T], the targets shifted already."""
        ...

    def padding_row(self) -> Batch:
        """A row of weight 0 that fills up a batch."""
        ...


def empty_row(seq_len: int) -> Batch:
    """All padding: segment 0, weight 0, token 0."""
    row = {name: np.zeros(seq_len, np.int32) for name in ("tokens", "targets", "positions")}
    row["segment_ids"] = np.zeros(seq_len, np.int32)
    row["weights"] = np.zeros(seq_len, np.float32)
    return row


class PackedRows:
    """Documents packed into rows; each piece of a document is a segment that stands alone.

    A document longer than a row is cut into pieces, each with its own segment and positions from
    0; the last token of a piece still has the first token of the next as its target, so every
    token but the first of a document is a target exactly once, with the weight that it has in its
    document. The last token of a document has no target. Documents [1 2 3 9] [4 5 6 9], seq_len 10:

        tokens       1 2 3 9 4 5 6 9 0 0
        targets      2 3 9 0 5 6 9 0 0 0
        weights      1 1 1 0 1 1 1 0 0 0
        positions    0 1 2 3 0 1 2 3 0 0
        segment_ids  1 1 1 1 2 2 2 2 0 0
    """

    def __init__(self, documents: Documents, seq_len: int) -> None:
        self._documents = documents
        self._seq_len = seq_len
        self._plan = plan_packing(documents.lengths, seq_len)
        self.num_rows = self._plan.num_rows
        self.num_tokens = int(self._plan.sizes.sum())
        self.num_slots = self.num_rows * seq_len

    def row(self, index: int) -> Batch:
        plan = self._plan
        row = empty_row(self._seq_len)
        at = 0
        first, last = plan.first_piece[index : index + 2].tolist()
        for segment, piece in enumerate(range(first, last), start=1):
            document, size = int(plan.documents[piece]), int(plan.sizes[piece])
            start = int(plan.starts[piece])
            stop = min(start + size + 1, int(self._documents.lengths[document]))
            _write_run(row, at, size, _read(self._documents, document, start, stop))
            row["positions"][at : at + size] = np.arange(size)
            row["segment_ids"][at : at + size] = segment
            at += size
        return row

    def padding_row(self) -> Batch:
        return empty_row(self._seq_len)


class JoinedRows:
    """Documents joined and cut into rows of seq_len tokens.

    One segment, positions 0..T-1 whatever documents are in the row. The target of a row's last
    token is the first token of the next row, so every token but the very first is a target once,
    with the weight that it has in its document. The last row ends with padding of segment 0.
    Documents [1 2 3 9] [4 5 6 9], seq_len 5:

        tokens   1 2 3 9 4 | 5 6 0 0 0
        targets  2 3 9 4 5 | 6 9 0 0 0
    """

    def __init__(self, documents: Documents, seq_len: int) -> None:
        self._documents = documents
        self._seq_len = seq_len
        self._stops = np.cumsum(documents.lengths)
        # The last token of all is a target only.
        self.num_tokens = max(int(self._stops[-1]) - 1, 0) if len(self._stops) else 0
        self.num_rows = -(-self.num_tokens // seq_len)
        self.num_slots = self.num_rows * seq_len

    def row(self, index: int) -> Batch:
        row = self.padding_row()
        start = index * self._seq_len
        run = self._read(start, start + self._seq_len + 1)
        size = min(self._seq_len, len(run.tokens) - 1)
        _write_run(row, 0, size, run)
        row["segment_ids"][:size] = 1
        return row

    def padding_row(self) -> Batch:
        return empty_row(self._seq_len) | {"positions": np.arange(self._seq_len, dtype=np.int32)}

    def _read(self, start: int, stop: int) -> _Run:
        """Tokens start..stop-1 of the joined documents, cut at the end of the last."""
        parts = []
        document = int(np.searchsorted(self._stops, start, side="right"))
        while start < stop and document < len(self._stops):
            document_stop = int(self._stops[document])
            first = document_stop - int(self._documents.lengths[document])
            end = min(stop, document_stop)
            parts.append(_read(self._documents, document, start - first, end - first))
            start, document = end, document + 1
        return _Run(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class _Run(NamedTuple):
    """Tokens that follow each other, and the weight of each as a target."""

    tokens: np.ndarray
    weights: np.ndarray


def _read(documents: Documents, document: int, start: int, stop: int) -> _Run:
    tokens = documents.read(document, start, stop).astype(np.int32)
    return _Run(tokens, documents.weights(document, start, stop))


def _write_run(row: Batch, at: int, size: int, run: _Run) -> None:
    """Writes `size` inputs and their targets; the last has a target if the run is longer."""
    targets = min(size, len(run.tokens) - 1)
    row["tokens"][at : at + size] = run.tokens[:size]
    row["targets"][at : at + targets] = run.tokens[1 : targets + 1]
    row["weights"][at : at + targets] = run.weights[1 : targets + 1]
