"""Tokens of text without spaces in which a tokenizer sets every digit apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from data.texts import Encode

_SHORTEST = 256
_DIGITS = b"0123456789"
_VISIBLE = bytes(range(0x21, 0x7F))
_WORD_BYTES = 8
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_WORD_BYTES + 1)], np.uint64)
_KEPT_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD")  # change nothing in ASCII
# Qwen 2 to 3; no other alternative takes a digit, and without white space none looks ahead.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def sets_digits_apart(tokenizer_json: bytes) -> bool:
    """Whether, in ASCII text without white space, each digit surely is a word of its own.

    Then a text may be cut on both sides of each digit, and tokens stay what they are.
    """
    content: dict[str, Any] = json.loads(tokenizer_json)
    normalizer = content.get("normalizer")
    if normalizer is not None and normalizer.get("type") not in _KEPT_NORMALIZERS:
        return False
    if any(
        not token.get("special") and _may_join(token) for token in content.get("added_tokens", [])
    ):
        return False
    splitter = content.get("pre_tokenizer") or {}
    first, *others = splitter.get("pretokenizers") or [splitter]
    return _splits_digits(first) and all(s.get("type") in ("ByteLevel", "Split") for s in others)


def _may_join(added_token: dict[str, Any]) -> bool:
    """Special ones are not looked for in a text."""
    if added_token.get("special"):
        return False
    return added_token.get("single_word", True) or any(c.isdigit() for c in added_token["content"])


def _splits_digits(splitter: dict[str, Any]) -> bool:
    if splitter.get("type") == "Digits":
        return bool(splitter.get("individual_digits"))
    return (
        splitter.get("type") == "Split"
        and splitter.get("pattern") == {"Regex": _QWEN_WORDS}
        and (splitter.get("behavior"), splitter.get("invert")) == ("Isolated", False)
    )


def fits(text: str) -> bool:
    """Whether a text is long, has no white space, and is digits for a quarter or more.

    With fewer, words are long and seldom alike, and nothing is gained.
    """
    if len(text) < _SHORTEST or not text.isascii():
        return False
    ascii_text = text.encode()
    num_digits = len(text) - len(ascii_text.translate(None, _DIGITS))
    return num_digits * 4 >= len(text) and not ascii_text.translate(None, _VISIBLE)


def encode_words(texts: Sequence[str], encode: Encode) -> list[np.ndarray]:
    """`encode` of texts that fit, unsigned integers [tokens] each: a call per different word.

    `ab12ab` -> words `ab` `1` `2` `ab` -> `encode(["1", "2", "ab"])`, put together by number. A
    package spends about a microsecond on every word, as much as on ten letters.
    """
    joined = np.frombuffer("".join(texts).encode(), np.uint8)
    text_starts = np.cumsum([0, *map(len, texts)])
    starts = _word_starts(joined, text_starts[:-1])
    words, numbers = _numbered(joined, starts)
    encoded = encode(words)
    sizes = np.array([len(ids) for ids in encoded])
    counts = sizes[numbers]
    ends = np.cumsum(counts)
    firsts = (np.cumsum(sizes) - sizes)[numbers]
    tokens = np.concatenate(encoded)[
        np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1])
    ]
    return np.split(tokens, ends[np.searchsorted(starts, text_starts[1:-1]) - 1])


def _word_starts(joined: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    """Where words start: at digits, after digits, and where a text does."""
    is_digit = joined - np.uint8(ord("0")) < 10
    is_start = is_digit.copy()
    is_start[1:] |= is_digit[:-1]
    is_start[text_starts] = True
    return np.flatnonzero(is_start)


def _numbered(joined: np.ndarray, starts: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The words to encode, and the number among them of each word of the text.

    Short words are told apart by their bytes as one number; a long one is its own entry.
    """
    stops = np.append(starts[1:], len(joined))
    padded = np.append(joined, np.zeros(_WORD_BYTES, np.uint8))
    eight_bytes = np.ndarray(len(joined), np.dtype("<u8"), padded, strides=(1,))
    lengths = stops - starts
    keys = eight_bytes[starts] & _MASKS[np.minimum(lengths, _WORD_BYTES)]
    is_long, is_single = lengths > _WORD_BYTES, lengths == 1
    numbers = np.empty(len(starts), np.int64)
    is_there = np.bincount(keys[is_single].astype(np.int64), minlength=256) > 0
    numbers[is_single] = (np.cumsum(is_there) - 1)[keys[is_single].astype(np.int64)]
    words = [chr(c) for c in np.flatnonzero(is_there)]
    is_short = ~(is_long | is_single)
    distinct, inverse = np.unique(keys[is_short], return_inverse=True)
    numbers[is_short] = inverse + len(words)
    words += [key.rstrip(b"\0").decode() for key in distinct.view("S8")]
    numbers[is_long] = np.arange(is_long.sum()) + len(words)
    text = joined.tobytes()
    long_words = zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True)
    return [*words, *(text[start:stop].decode() for start, stop in long_words)], numbers
