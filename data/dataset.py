"""A split of the data as numbered batches, each made when asked for."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from configs.schema import DataConfig
from configs.words import counted
from data.documents import Documents, EndedDocuments
from data.rows import Batch, JoinedRows, PackedRows, Rows
from data.sources import Source, open_source
from data.split import split_documents
from data.tokenizer import Tokenizer

Split = Literal["train", "eval"]
RowChoice = slice | Sequence[int] | np.ndarray | None
"""Some rows of a global batch, by their numbers in it; None is all of them."""


@dataclass(frozen=True)
class DataStats:
    """What a split holds, and what was met while its source was opened."""

    documents: int
    tokens: int
    """Of the documents, with the EOS of each."""
    rows: int
    """In one epoch; in the eval split, the rows that are scored."""
    padding_fraction: float
    """Part of the slots of all rows that hold no token."""
    empty_documents: int
    """Left out, in the whole source: no character but white space."""
    invalid_bytes: int
    """In the whole source: bytes that are not UTF-8."""
    first_invalid: str | None
    """File and byte offset of the first of them."""

    def summary(self) -> str:
        """One line for the log."""
        text = (
            f"{counted(self.documents, 'document')}, {counted(self.tokens, 'token')} in "
            f"{counted(self.rows, 'row')} ({self.padding_fraction:.1%} padding)"
        )
        if self.empty_documents:
            text += f"; {counted(self.empty_documents, 'empty document')} left out"
        if self.invalid_bytes:
            text += f"; {self.invalid_bytes:,} bytes are not UTF-8, the first: {self.first_invalid}"
        return text


class Dataset:
    """Batches of one split, by number; a batch depends on the config and its number only.

    The train split takes a new order of its rows each epoch, given by data.seed. With data.epochs
    unset it goes on for ever, and a batch may end one epoch and begin the next; with data.epochs
    set, every epoch has ceil(rows / batch) batches, the last filled up with rows of weight 0, and
    every row comes exactly once an epoch. The eval split is one such epoch in a fixed order.
    """

    def __init__(self, config: DataConfig, split: Split, source: Source) -> None:
        parts = split_documents(source.documents, config.eval_fraction)
        documents: Documents = parts[split == "eval"]
        if source.adds_eos:
            documents = EndedDocuments(documents, source.tokenizer.eos_id)
        rows: Rows = (PackedRows if config.pack else JoinedRows)(documents, config.seq_len)
        self.tokenizer: Tokenizer = source.tokenizer
        self.batch_size = config.batch
        self.seq_len = config.seq_len
        self.num_rows = rows.num_rows
        if split == "eval" and config.eval_rows is not None:
            self.num_rows = min(self.num_rows, config.eval_rows)
        self.stats = _stats(documents, rows, source, self.num_rows)
        self._epochs = 1 if split == "eval" else config.epochs
        self._rows = rows
        self._ordered = _ordered(rows, self.num_rows, config.seed if split == "train" else None)
        self.fingerprint = self._fingerprint(config, split, source)

    @property
    def num_batches(self) -> int | None:
        """How many batches there are; None where the data repeats for ever."""
        return None if self._epochs is None else self._epochs * self._batches_per_epoch

    @property
    def _batches_per_epoch(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def epoch(self, step: int) -> float:
        """How many passes over the data `step` batches are; 0.0 before the first."""
        if self._epochs is None:
            return step * self.batch_size / self.num_rows
        return step / max(self._batches_per_epoch, 1)

    def batch(self, step: int, rows: RowChoice = None) -> Batch:
        """Makes batch `step` (0 is the first), or some of its rows only.

        Args:
          step: number of the batch.
          rows: which rows of the global batch; all where None. The same rows whoever asks, so
            each process makes its own and none is made twice.

        Returns tokens, targets, positions, segment_ids int32 and weights float32, all [B, T], rows
        in contiguous order. Raises IndexError past the last batch.
        """
        if step < 0 or (self.num_batches is not None and step >= self.num_batches):
            raise IndexError(f"batch {step} of a data set with {self.num_batches} batches")
        slots = np.arange(self.batch_size)
        chosen = slots if rows is None else slots[rows]
        made = [self._row(step, int(slot)) for slot in chosen]
        # Without any row asked for, the arrays are [0, T].
        columns = self._rows.padding_row()
        return {
            name: np.array([row[name] for row in made], column.dtype).reshape(-1, self.seq_len)
            for name, column in columns.items()
        }

    def _row(self, step: int, slot: int) -> Batch:
        if self._epochs is None:
            return self._ordered[step * self.batch_size + slot]
        epoch, place = divmod(step, self._batches_per_epoch)
        place = place * self.batch_size + slot
        if place >= self.num_rows:
            return self._rows.padding_row()
        return self._ordered[epoch * self.num_rows + place]

    def _fingerprint(self, config: DataConfig, split: Split, source: Source) -> str:
        num_probed = min(self.batch_size, self.num_rows, 4)
        probe = b"".join(self._row(0, slot)["tokens"].tobytes() for slot in range(num_probed))
        parts = {
            "source": config.source,
            "content": source.documents.digest(),
            "tokenizer": self.tokenizer.name,
            "split": split,
            "eval_fraction": config.eval_fraction,
            "pack": config.pack,
            "seq_len": config.seq_len,
            "batch": config.batch,
            "seed": config.seed,
            "repeats": self._epochs is None,
            "order": hashlib.blake2b(probe, digest_size=4).hexdigest(),
        }
        return " ".join(f"{name}={value}" for name, value in parts.items())


def open_data(config: DataConfig, split: Split, vocab_size: int) -> Dataset:
    """Opens one split of the data that the config names.

    An eval split that holds nothing (data.eval_fraction=0, or too little data) has no batches.
    Raises DataError for an input that is refused: missing, unreadable, without tokens, or with
    token ids past vocab_size.
    """
    return Dataset(config, split, open_source(config, vocab_size))


def open_splits(config: DataConfig, vocab_size: int) -> tuple[Dataset, Dataset]:
    """Opens (train, eval) with one pass over the source; otherwise as `open_data`."""
    source = open_source(config, vocab_size)
    return Dataset(config, "train", source), Dataset(config, "eval", source)


def fingerprint_changes(saved: str, current: str) -> list[str]:
    """What differs between two fingerprints, as `seq_len: 512 -> 1024`; nothing where equal."""
    saved_parts, current_parts = (
        dict(part.split("=", 1) for part in text.split(" ")) for text in (saved, current)
    )
    names = itertools.chain(saved_parts, current_parts.keys() - saved_parts.keys())
    return [
        f"{name}: {saved_parts.get(name)} -> {current_parts.get(name)}"
        for name in names
        if saved_parts.get(name) != current_parts.get(name)
    ]


def _stats(documents: Documents, rows: Rows, source: Source, num_rows: int) -> DataStats:
    return DataStats(
        documents=len(documents.lengths),
        tokens=int(documents.lengths.sum()),
        rows=num_rows,
        padding_fraction=1 - rows.num_tokens / max(rows.num_slots, 1),
        empty_documents=source.totals.empty_documents,
        invalid_bytes=source.totals.invalid_bytes,
        first_invalid=source.totals.first_invalid,
    )


def _ordered(rows: Rows, num_rows: int, seed: int | None) -> Any:
    """A Grain data set: rows by their number in a run through all epochs.

    With a seed, every epoch is another permutation of all rows. Without one the order is fixed;
    fewer rows than there are, are taken evenly from all, as packed rows are sorted by size.
    """
    import grain

    if num_rows == 0:
        return []
    if seed is None:
        picked = np.linspace(0, rows.num_rows - 1, num_rows).round().astype(np.int64)
        return grain.MapDataset.source(picked).map(lambda index: rows.row(int(index)))
    order_seed = hashlib.blake2b(str(seed).encode(), digest_size=4).digest()
    shuffled = grain.MapDataset.range(num_rows).shuffle(seed=int.from_bytes(order_seed, "little"))
    return shuffled.repeat().map(rows.row)
