"""Texts on their way to a tokenizer: where they are from, and how long ones are cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data.records import Place

PIECE_CHARACTERS = 1 << 14
_CONTEXT = 256
_TRIES = (2, 6, 8, 16)  # cuts that are checked at once: the first ones mostly fit
_MOST_SPACES = 16

Encode = Callable[[Sequence[str]], list[np.ndarray]]


class Text(NamedTuple):
    """One document, whole or in chunks, so that a huge one is never in memory at once."""

    place: Place
    chunks: Iterable[str]


def without_surrogates(text: str) -> str:
    """Replaces lone surrogates (a `\\ud800` in JSON), which no tokenizer takes, by U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def pieces(
    chunks: Iterable[str], encode: Encode, piece_characters: int = PIECE_CHARACTERS
) -> Iterator[str]:
    """Cuts a long text so that the tokens of the pieces are the tokens of the text.

    Some tokenizers need minutes and gigabytes for one very long word. A cut is made before a
    space where there is one, and is checked: the text around it must give the same tokens in two
    parts as in one. A tokenizer that puts a space in front of every text makes up for the one that
    is then left out. Only where no cut among a few passes the check (the whole of the text around
    is one token, or one rhythm) may tokens differ, next to the cut.
    """
    rest = ""
    for chunk in chunks:
        rest += chunk
        at = 0
        while len(rest) - at >= 2 * piece_characters:
            stop, start = _cut(rest, at + piece_characters, encode)
            yield rest[at:stop]
            at = start
        rest = rest[at:]
    yield rest


def _cut(text: str, near: int, encode: Encode) -> tuple[int, int]:
    """Where a piece stops and the next starts, at most _CONTEXT characters before `near`."""
    low, high = near - _CONTEXT, near + _CONTEXT
    for candidates in (_before_spaces(text, near), _anywhere(near)):
        rest = iter(candidates)
        for count in _TRIES:
            tried = list(itertools.islice(rest, count))
            if not tried:
                break
            parts = [part for p, q in tried for part in (text[low:p], text[q:high])]
            whole, *encoded = encode([text[low:high], *parts])
            for i, cut in enumerate(tried):
                if np.array_equal(np.concatenate(encoded[2 * i : 2 * i + 2]), whole):
                    return cut
    return near, near


def _before_spaces(text: str, near: int) -> list[tuple[int, int]]:
    """Cuts before single spaces, the last first; with the space in the next piece, or in none."""
    found: list[tuple[int, int]] = []
    low, at = near - _CONTEXT // 2, near
    while len(found) < _MOST_SPACES and (at := text.rfind(" ", low, at)) > low:
        if not (text[at - 1].isspace() or text[at + 1].isspace()):
            found += [(at, at), (at, at + 1)]
    return found


def _anywhere(near: int) -> list[tuple[int, int]]:
    return [(at, at) for at in range(near, near - sum(_TRIES), -1)]
