"""Long text without spaces, for a BPE whose merges keep its words apart by themselves."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

_SHORTEST = 1024
_NO_CHANGE = ("NFC", "NFD", "NFKC", "NFKD")  # normalizers that change nothing in ASCII
_LETTERS_AND_DIGITS = string.ascii_letters + string.digits
_VISIBLE = _LETTERS_AND_DIGITS + string.punctuation.replace("'", "")  # `'s` is a word in GPT-2
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}
# Qwen 2 to 3. Among letters and digits alone: runs of letters, and every digit.
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def is_one_long_word(text: str) -> bool:
    """Whether a text is long, ASCII and without spaces, which is found out at once."""
    return len(text) >= _SHORTEST and text.isascii() and " " not in text


class Words(NamedTuple):
    """What a pre-tokenizer makes of text in `characters`: runs of letters, digits, others."""

    characters: str
    every_digit: bool
    """Each digit is a word of its own."""


class Unsplit(NamedTuple):
    """A tokenizer.json without the pre-tokenizer's words, and the characters it is right for."""

    content: str
    characters: bytes

    def fits(self, text: str) -> bool:
        """Whether a text is long and has its tokens without being split into words."""
        return is_one_long_word(text) and not text.encode().translate(None, self.characters)


def unsplit(tokenizer_json: bytes) -> Unsplit | None:
    """The tokenizer that leaves words out, or None where tokens might be others.

    The package spends about a microsecond on every word, as much as on ten letters, and text of
    letters and digits is all short words. A byte-level BPE makes the same tokens of it in one
    piece if none of its merges joins what the pre-tokenizer sets apart, as it has learnt them
    from words: merges go by rank, and those within one word do not ask for its neighbours.
    """
    content: dict[str, Any] = json.loads(tokenizer_json)
    words = _words(content.get("pre_tokenizer") or {})
    normalizer = content.get("normalizer") or {"type": _NO_CHANGE[0]}
    if words is None or normalizer.get("type") not in _NO_CHANGE:
        return None
    if not _is_plain(content["model"], words) or _joins(content["model"]["merges"], words):
        return None
    changed = {"pre_tokenizer": _BYTES, "truncation": None, "padding": None}
    return Unsplit(json.dumps(content | changed), words.characters.encode())


def _words(splitter: dict[str, Any]) -> Words | None:
    steps: list[dict[str, Any]] = splitter.get("pretokenizers") or [splitter]
    is_split = steps[0].get("type") == "Digits"
    every_digit = is_split and bool(steps[0].get("individual_digits"))
    match steps[1:] if is_split else steps:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return Words(_VISIBLE, every_digit)
        case [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if regex == _QWEN:
            return Words(_LETTERS_AND_DIGITS, every_digit=True)
    return None


def _is_plain(model: dict[str, Any], words: Words) -> bool:
    """Whether the model is a BPE that knows all characters and does nothing but merge."""
    extras = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    if model.get("type") != "BPE" or any(model.get(key) for key in extras):
        return False
    return all(character in model["vocab"] for character in words.characters)


def _joins(merges: Sequence[str | Sequence[str]], words: Words) -> bool:
    """Whether a merge makes a token of two words."""
    known = set(words.characters)
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if known.issuperset(left) and known.issuperset(right):
            kinds = {_kind(left[-1]), _kind(right[0])}
            if len(kinds) > 1 or (words.every_digit and "digit" in kinds):
                return True
    return False


def _kind(character: str) -> str:
    return "digit" if character.isdigit() else "letter" if character.isalpha() else "other"
