"""Tokenizers: what the rest asks of one, and the two that need no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from data.documents import DataError


class Tokenizer(Protocol):
    """What the rest of FoldText asks of a tokenizer."""

    name: str
    """Tells tokenizers apart in logs and fingerprints; no white space."""
    vocab_size: int
    """Largest token id plus one, special and added tokens included."""
    eos_id: int
    """The token that ends every document, exactly once."""
    prefix: tuple[int, ...]
    """What every document and every prompt begins with: a BOS token, or nothing."""
    stop_ids: frozenset[int]
    """Tokens that end a generated text: EOS, and the ends of turns that the tokenizer names."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens; text that spells one stays text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; special tokens become nothing."""
        ...


class TextTokenizer(Tokenizer, Protocol):
    """A tokenizer that text sources can be read with."""

    special_ids: frozenset[int]
    special_tokens: Mapping[str, str]
    """What a chat template may write: `bos_token` -> `<s>`, and so on."""
    chat_template: str | None
    """In Jinja; None where the tokenizer's files hold none."""

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of many texts, faster; unsigned integers [tokens] each."""
        ...

    def encode_marked(self, text: str) -> Spans:
        """Token ids of a text in which special tokens are written out, and where each stands."""
        ...


class Spans(NamedTuple):
    """Tokens of a text, integers [tokens] each: ids, and the characters start..stop-1 of each.

    Tokens that share a character (its bytes, say) all have it; together they cover the text.
    """

    ids: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    def overlapping(self, start: int, stop: int) -> np.ndarray:
        """Whether each token holds any of the characters start..stop-1, bool [tokens]."""
        return (self.starts < stop) & (self.stops > start)


def covering_spans(ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Spans:
    """Spans from a library's offsets, which leave out some white space and some bytes.

    Characters that no token claims go to the token after them; a token without characters takes
    those of the next: `a`(0,1) `  `(3,3) `b`(4,5) -> (0,1) (1,3) (3,5).
    """
    starts, stops = np.array(offsets, np.int64).reshape(-1, 2).T.copy()
    starts = np.minimum(starts, np.concatenate([[0], stops[:-1]])[: len(starts)])
    for i in np.flatnonzero(starts == stops)[::-1]:
        if i + 1 < len(stops):
            stops[i] = stops[i + 1]
    return Spans(np.array(ids, np.int64), starts, stops)


class ByteTokenizer:
    """The bytes of UTF-8 as ids 0..255, and 256 at the end of a document.

    Bytes that are not UTF-8 are tokens like all others; only `decode` replaces them, by U+FFFD.
    """

    name = "bytes"
    vocab_size = 257
    eos_id = 256
    prefix: tuple[int, ...] = ()
    stop_ids = frozenset({256})
    special_ids: frozenset[int] = frozenset()
    special_tokens: Mapping[str, str] = {}
    chat_template: str | None = None

    def encode(self, text: str) -> list[int]:
        """`"é"` -> [195, 169]; bytes that Python smuggled in as surrogates come out again."""
        return self.encode_many([text])[0].tolist()

    def decode(self, ids: Sequence[int]) -> str:
        """[195, 169, 256] -> `"é"`."""
        return bytes(int(i) for i in ids if 0 <= int(i) < self.eos_id).decode("utf-8", "replace")

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(_utf8(text), np.uint8) for text in texts]

    def encode_marked(self, text: str) -> Spans:
        """There are no special tokens to write out: the bytes, each with its character."""
        bytes_of_character = [len(_utf8(character)) for character in text]
        starts = np.repeat(np.arange(len(text)), bytes_of_character)
        return Spans(np.array(self.encode(text), np.int64), starts, starts + 1)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


class NumberTokenizer:
    """Token ids written as numbers, for data that never was text."""

    name = "numbers"
    prefix: tuple[int, ...] = ()

    def __init__(self, vocab_size: int, eos_id: int | None = None) -> None:
        """The last id ends a document, unless another is given."""
        self.vocab_size = vocab_size
        self.eos_id = vocab_size - 1 if eos_id is None else eos_id
        self.stop_ids = frozenset({self.eos_id})

    def encode(self, text: str) -> list[int]:
        """`"5 6 7"` -> [5, 6, 7]. Raises DataError for anything else, and for ids too large."""
        try:
            ids = [int(word) for word in text.split()]
        except ValueError:
            ids = [-1]
        if any(not 0 <= i < self.vocab_size for i in ids):
            raise DataError(
                f"{text!r} is not a list of token ids in 0..{self.vocab_size - 1}; this data set "
                'has no text, only numbers such as "5 6 7"'
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """[5, 6, 7, EOS] -> `"5 6 7"`."""
        return " ".join(str(int(i)) for i in ids if int(i) != self.eos_id)


def check_vocab_size(tokenizer: Tokenizer, vocab_size: int, origin: str) -> None:
    """Raises DataError where the tokenizer has ids that the embedding table has no row for."""
    largest = tokenizer.vocab_size - 1
    if largest >= vocab_size:
        raise DataError(
            f"{origin}: token id {largest} does not fit model.vocab_size={vocab_size}; the "
            f"tokenizer has ids 0..{largest}, so model.vocab_size must be "
            f"{tokenizer.vocab_size} or more"
        )
