"""Documents as token ids: what every source hands to the row planners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class DataError(ValueError):
    """An input was refused; the message names the key, the values and the file."""


class Documents(Protocol):
    """Documents that can be read at any place; end-of-document tokens are not part of them.

    A source implements these four members and nothing else. No document is empty.
    """

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each document, int64 [documents]."""
        ...

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        """Token ids start..stop-1 of one document, unsigned integers [stop - start]."""
        ...

    def name(self, document: int) -> str:
        """What error messages call the document; also decides whether it is held out."""
        ...

    def digest(self) -> str:
        """A short hash of the names and contents of all documents."""
        ...


class DocumentRanges:
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

    def name(self, document: int) -> str:
        return self._documents.name(int(self._indices[document]))

    def digest(self) -> str:
        return self._documents.digest()


def read_with_eos(
    documents: Documents, eos_id: int, document: int, start: int, stop: int
) -> np.ndarray:
    """Reads a document that ends with one EOS token, cut at its end, int32 [<= stop - start].

    A document of the tokens [7, 8, 9]: start=1, stop=9 -> [8, 9, EOS].
    """
    length = int(documents.lengths[document])
    body = documents.read(document, min(start, length), min(stop, length)).astype(np.int32)
    return np.append(body, np.int32(eos_id)) if stop > length else body


class ArrayDocuments:
    """Documents held in memory, one array of token ids each.

    Raises DataError for an id outside 0..vocab_size-1, naming the id, the document and both limits.
    """

    def __init__(
        self, arrays: Sequence[np.ndarray], names: Sequence[str], digest: str, vocab_size: int
    ) -> None:
        for array, name in zip(arrays, names, strict=True):
            _check_token_ids(array, name, vocab_size)
        self._arrays = arrays
        self._names = names
        self._digest = digest
        self.lengths = np.array([len(array) for array in arrays], np.int64)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        return self._arrays[document][start:stop]

    def name(self, document: int) -> str:
        return self._names[document]

    def digest(self) -> str:
        return self._digest


def _check_token_ids(array: np.ndarray, name: str, vocab_size: int) -> None:
    outside = np.flatnonzero((array < 0) | (array >= vocab_size))
    if outside.size:
        at = int(outside[0])
        raise DataError(
            f"{name}: token id {int(array[at])} at position {at} is not in 0..{vocab_size - 1} "
            f"(model.vocab_size={vocab_size}); the ids of this document reach from "
            f"{int(array.min())} to {int(array.max())}"
        )
