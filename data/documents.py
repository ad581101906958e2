"""Documents as token ids: what every source hands to the row planners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class DataError(ValueError):
    """An input was refused; the message names the key, the values and the file."""


class Documents(Protocol):
    """Documents that can be read at any place. No document is empty.

    A source inherits from this class and implements all but `weights`.
    """

    lengths: np.ndarray
    """Tokens in each document, int64 [documents]."""

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        """Token ids start..stop-1 of one document, integers [stop - start]."""
        ...

    def weights(self, document: int, start: int, stop: int) -> np.ndarray:
        """1.0 where a token is scored as a target, else 0.0, float32 [stop - start]."""
        return np.ones(stop - start, np.float32)

    def name(self, document: int) -> str:
        """What error messages call the document; also decides whether it is held out."""
        ...

    def digest(self) -> str:
        """A short hash of the names and contents of all documents."""
        ...


class DocumentRanges(Documents):
    """A view of some documents, or of parts of them, that are documents of their own."""

    def __init__(
        self, documents: Documents, indices: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> None:
        self._documents = documents
        self._indices = indices
        self._starts = starts
        self.lengths = (stops - starts).astype(np.int64)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        offset = int(self._starts[document])
        return self._documents.read(int(self._indices[document]), offset + start, offset + stop)

    def weights(self, document: int, start: int, stop: int) -> np.ndarray:
        offset = int(self._starts[document])
        return self._documents.weights(int(self._indices[document]), offset + start, offset + stop)

    def name(self, document: int) -> str:
        return self._documents.name(int(self._indices[document]))

    def digest(self) -> str:
        return self._documents.digest()


class EndedDocuments(Documents):
    """Documents with an EOS token, that is scored, at the end of each: [7, 8] -> [7, 8, EOS]."""

    def __init__(self, documents: Documents, eos_id: int) -> None:
        self._documents = documents
        self._eos_id = eos_id
        self.lengths = documents.lengths + 1

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        length = int(self._documents.lengths[document])
        body = self._documents.read(document, start, min(stop, length)).astype(np.int32)
        return np.append(body, np.int32(self._eos_id)) if stop > length else body

    def weights(self, document: int, start: int, stop: int) -> np.ndarray:
        length = int(self._documents.lengths[document])
        body = self._documents.weights(document, start, min(stop, length))
        return np.append(body, np.float32(1)) if stop > length else body

    def name(self, document: int) -> str:
        return self._documents.name(document)

    def digest(self) -> str:
        return self._documents.digest()


class ArrayDocuments(Documents):
    """Documents held in memory, one array of token ids each and, maybe, one of weights.

    Raises DataError for an id outside 0..vocab_size-1, naming the id, the document and both limits.
    """

    def __init__(
        self,
        arrays: Sequence[np.ndarray],
        names: Sequence[str],
        digest: str,
        vocab_size: int,
        weights: Sequence[np.ndarray] | None = None,
    ) -> None:
        for array, name in zip(arrays, names, strict=True):
            check_token_ids(array, name, vocab_size)
        self._arrays = arrays
        self._names = names
        self._digest = digest
        self._weights = weights
        self.lengths = np.array([len(array) for array in arrays], np.int64)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        return self._arrays[document][start:stop]

    def weights(self, document: int, start: int, stop: int) -> np.ndarray:
        if self._weights is None:
            return super().weights(document, start, stop)
        return self._weights[document][start:stop].astype(np.float32)

    def name(self, document: int) -> str:
        return self._names[document]

    def digest(self) -> str:
        return self._digest


def check_token_ids(array: np.ndarray, name: str, vocab_size: int) -> None:
    """Raises DataError for an id outside 0..vocab_size-1, naming it, its place and the limits."""
    outside = np.flatnonzero((array < 0) | (array >= vocab_size))
    if outside.size:
        at = int(outside[0])
        raise DataError(
            f"{name}: token id {int(array[at])} at position {at} is not in 0..{vocab_size - 1} "
            f"(model.vocab_size={vocab_size}); the ids of this document reach from "
            f"{int(array.min())} to {int(array.max())}"
        )
