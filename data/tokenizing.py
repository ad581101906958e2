"""Texts to tokens, many at a time, with word of how far it is."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from data.documents import DataError
from data.records import Place
from data.store import StoreWriter
from data.texts import Text, pieces, without_surrogates
from data.tokenizer import TextTokenizer

_BATCH_CHARACTERS = 1 << 20
_BATCH_PIECES = 4096
_BATCHES_AHEAD = 2
_LOG_SECONDS = 10.0

log = logging.getLogger("foldtext")


class Progress:
    """Logs, every ten seconds, how much has been tokenized; `unit` is characters or tokens."""

    def __init__(self, unit: str) -> None:
        self._start = self._logged = time.monotonic()
        self._unit = unit
        self._documents = self._amount = 0

    def add(self, documents: int, amount: int) -> None:
        self._documents += documents
        self._amount += amount
        now = time.monotonic()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.info(
                "data: tokenized %s documents, %.1f million %s, %.2f million a second",
                f"{self._documents:,}",
                self._amount / 1e6,
                self._unit,
                self._amount / 1e6 / (now - self._start),
            )


class _Piece(NamedTuple):
    text: str
    place: Place
    is_last: bool
    """Of its document."""


def write_texts(texts: Iterable[Text], tokenizer: TextTokenizer, writer: StoreWriter) -> int:
    """Writes the tokens of every text, the tokenizer's prefix in front of each.

    Returns how many texts were left out because no character but white space, or no token, is in
    them. Raises DataError, with the place, for a text that the tokenizer fails on.
    """
    prefix = np.array(tokenizer.prefix, np.int64)
    empty, progress = 0, Progress("characters")
    for batch, encoded in _encoded(_batches(_cut(texts, tokenizer)), tokenizer):
        for piece, ids in zip(batch, encoded, strict=True):
            if writer.document_length == 0 and len(ids):
                writer.append(prefix)
            writer.append(ids)
            if piece.is_last:
                empty += not writer.end_document(piece.place)
        progress.add(sum(p.is_last for p in batch), sum(len(p.text) for p in batch))
    return empty


def _cut(texts: Iterable[Text], tokenizer: TextTokenizer) -> Iterator[_Piece]:
    """The pieces of all texts; a text of white space alone becomes one empty piece."""
    for text in texts:
        chunks = (without_surrogates(chunk) for chunk in text.chunks)
        held: list[str] = []
        is_blank = True
        for part in pieces(chunks, tokenizer.encode_many):
            is_blank = is_blank and not part.strip()
            held.append(part)
            if not is_blank:
                yield from (_Piece(ready, text.place, False) for ready in held[:-1])
                held = held[-1:]
        yield _Piece("" if is_blank else held[-1], text.place, True)


def _batches(parts: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    num_characters = 0
    for part in parts:
        batch.append(part)
        num_characters += len(part.text)
        if num_characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _encoded(
    batches: Iterable[list[_Piece]], tokenizer: TextTokenizer
) -> Iterator[tuple[list[_Piece], list[np.ndarray]]]:
    """Each batch with its tokens. The next ones are encoded meanwhile: a package uses all cores
    while it encodes, and one while its tokens become arrays."""
    ahead: deque[tuple[list[_Piece], Future[list[np.ndarray]]]] = deque()
    with ThreadPoolExecutor(_BATCHES_AHEAD) as pool:
        for batch in batches:
            ahead.append((batch, pool.submit(_encode, batch, tokenizer)))
            if len(ahead) > _BATCHES_AHEAD:
                first, tokens = ahead.popleft()
                yield first, tokens.result()
        for last, tokens in ahead:
            yield last, tokens.result()


def _encode(batch: list[_Piece], tokenizer: TextTokenizer) -> list[np.ndarray]:
    try:
        return tokenizer.encode_many([part.text for part in batch])
    except DataError:
        for part in batch:
            try:
                tokenizer.encode_many([part.text])
            except DataError as error:
                raise DataError(f"{part.place}: {error}") from error
        raise
