"""Texts on their way to a tokenizer: where they are from, and how long ones are cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data.records import Place

PIECE_CHARACTERS = 1 << 14
_CONTEXT = 256
_TRIES = (2, 6, 8, 16)  # cuts that are checked at once: the first ones mostly fit
_MOST_SPACES = 16
_PLACES_AT_ONCE = 64

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
        places = range(piece_characters, len(rest) - piece_characters + 1, piece_characters)
        at = 0
        for first in range(0, len(places), _PLACES_AT_ONCE):
            for stop, start in _cuts(rest, places[first : first + _PLACES_AT_ONCE], encode):
                yield rest[at:stop]
                at = start
        rest = rest[at:]
    yield rest


def _cuts(text: str, near: Sequence[int], encode: Encode) -> list[tuple[int, int]]:
    """Where pieces stop and the next start, each at most _CONTEXT characters before its place.

    Many places are tried in one call, as a call costs as much as a thousand characters.
    """
    wholes = dict(zip(near, encode([text[p - _CONTEXT : p + _CONTEXT] for p in near]), strict=True))
    found: dict[int, tuple[int, int]] = {}
    for candidates in (_before_spaces, _anywhere):
        places = {p: candidates(text, p) for p in near if p not in found}
        for first, last in itertools.pairwise(itertools.accumulate(_TRIES, initial=0)):
            tried = [(p, cut) for p in places if p not in found for cut in places[p][first:last]]
            for p, cut in _fitting(text, tried, wholes, encode):
                found.setdefault(p, cut)
    return [found.get(p, (p, p)) for p in near]


def _fitting(
    text: str,
    tried: Sequence[tuple[int, tuple[int, int]]],
    wholes: Mapping[int, np.ndarray],
    encode: Encode,
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Those of (place, cut) whose two parts have the tokens of the whole around the place."""
    parts = [
        part
        for p, (stop, start) in tried
        for part in (text[p - _CONTEXT : stop], text[start : p + _CONTEXT])
    ]
    encoded = encode(parts) if parts else []
    for i, (p, cut) in enumerate(tried):
        if np.array_equal(np.concatenate(encoded[2 * i : 2 * i + 2]), wholes[p]):
            yield p, cut


def _before_spaces(text: str, near: int) -> list[tuple[int, int]]:
    """Cuts before single spaces, the last first; with the space in the next piece, or in none."""
    found: list[tuple[int, int]] = []
    low, at = near - _CONTEXT // 2, near
    while len(found) < _MOST_SPACES and (at := text.rfind(" ", low, at)) > low:
        if not (text[at - 1].isspace() or text[at + 1].isspace()):
            found += [(at, at), (at, at + 1)]
    return found


def _anywhere(text: str, near: int) -> list[tuple[int, int]]:
    return [(at, at) for at in range(near, near - sum(_TRIES), -1)]
