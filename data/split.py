"""The documents of the train split and of the eval split."""

from __future__ import annotations

import hashlib

import numpy as np

from data.documents import DocumentRanges, Documents


def split_documents(
    documents: Documents, eval_fraction: float
) -> tuple[DocumentRanges, DocumentRanges]:
    """Parts documents into (train, eval), both in their order; no token is in both.

    The documents whose names hash lowest are held out, so that the choice depends on no seed and
    hardly changes when files are added. Where eval_fraction is less than one document (one big
    file, say), the tail of the longest document is held out instead. The eval part is without
    documents where eval_fraction is 0 or leaves it no token, the train part where it is 1.
    """
    lengths = documents.lengths
    num_documents = len(lengths)
    if eval_fraction == 1:
        everything = np.ones(num_documents, bool)
        return _whole(documents, ~everything), _whole(documents, everything)
    if eval_fraction * num_documents >= 1:
        num_held = min(round(eval_fraction * num_documents), num_documents - 1)
        held = np.zeros(num_documents, bool)
        held[_by_name_hash(documents)[:num_held]] = True
        return _whole(documents, ~held), _whole(documents, held)
    return _hold_out_tail(documents, round(eval_fraction * int(lengths.sum())))


def _by_name_hash(documents: Documents) -> list[int]:
    def key(document: int) -> bytes:
        return hashlib.blake2b(documents.name(document).encode(), digest_size=8).digest()

    return sorted(range(len(documents.lengths)), key=key)


def _whole(documents: Documents, chosen: np.ndarray) -> DocumentRanges:
    indices = np.flatnonzero(chosen)
    return DocumentRanges(documents, indices, np.zeros_like(indices), documents.lengths[indices])


def _hold_out_tail(documents: Documents, num_tokens: int) -> tuple[DocumentRanges, DocumentRanges]:
    lengths = documents.lengths
    everything = np.arange(len(lengths))
    longest = np.array([int(np.argmax(lengths))])
    num_held = min(num_tokens, int(lengths[longest[0]]) - 1)
    stops = lengths.copy()
    stops[longest] -= num_held
    train = DocumentRanges(documents, everything, np.zeros_like(everything), stops)
    if num_held == 0:
        longest = longest[:0]
    return train, DocumentRanges(documents, longest, stops[longest], lengths[longest])
