"""Tokenizers: text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from data.documents import DataError


class Tokenizer(Protocol):
    """What the rest of FoldText asks of a tokenizer."""

    name: str
    vocab_size: int
    """Largest token id plus one, special and added tokens included."""
    eos_id: int
    """The token that ends every document, exactly once."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; special tokens become nothing."""
        ...


class ByteTokenizer:
    """The bytes of UTF-8 as ids 0..255, and 256 at the end of a document.

    Bytes that are not UTF-8 are tokens like all others; only `decode` replaces them, by U+FFFD.
    """

    name = "bytes"
    vocab_size = 257
    eos_id = 256

    def encode(self, text: str) -> list[int]:
        """`"é"` -> [195, 169]; bytes that Python smuggled in as surrogates come out again."""
        try:
            return list(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """[195, 169, 256] -> `"é"`."""
        return bytes(int(i) for i in ids if 0 <= int(i) < self.eos_id).decode("utf-8", "replace")


class NumberTokenizer:
    """Token ids written as numbers, for data that never was text; the last id ends a document."""

    name = "numbers"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_id = vocab_size - 1

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
            f"{tokenizer.name} tokenizer has ids 0..{largest}, so model.vocab_size must be "
            f"{tokenizer.vocab_size} or more"
        )
