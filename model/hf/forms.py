"""How a parameter lies in a Hugging Face file: a few letters that say what to split and swap.

    "(N H) D -> D N H"       rows of the file are heads times width; here they are axes of their own
    "F D -> E D F"           one tensor an expert: E is in the name, not in the tensor
    "E D (F 0/2) -> E D F"   columns of two parameters take turns; this is the first of the two
    "D"                      as it is

Both directions use the same views, so what is written reads back bit for bit.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Index = Mapping[str, slice]


@dataclass(frozen=True)
class Token:
    """A letter, or one of `parts` neighbours (`pick`) that take turns along an axis."""

    letter: str | None = None
    pick: int = 0
    parts: int = 1

    def size(self, sizes: Mapping[str, int]) -> int:
        return self.parts if self.letter is None else sizes[self.letter]

    def bounds(self, index: Index, sizes: Mapping[str, int]) -> tuple[int, int]:
        """First and last + 1 of what is wanted."""
        if self.letter is None:
            return self.pick, self.pick + 1
        first, last, step = index.get(self.letter, slice(None)).indices(sizes[self.letter])
        assert step == 1
        return first, last


@dataclass(frozen=True)
class Form:
    """A parsed form: the axes of the file's tensor, each a product of tokens, and ours."""

    stored: tuple[tuple[Token, ...], ...]
    ours: tuple[str, ...]

    @property
    def letters(self) -> tuple[str, ...]:
        """Our letters that are in the tensor, in the tensor's order."""
        return tuple(t.letter for axis in self.stored for t in axis if t.letter is not None)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the file's tensor."""
        return tuple(math.prod(token.size(sizes) for token in axis) for axis in self.stored)

    def read(self, tensor: Any, index: Index, sizes: Mapping[str, int]) -> np.ndarray:
        """The part `index` of the parameter, from a tensor that is read by slices.

        Only the rows and columns that hold it are read. Axes have our order, without those that
        are not in the tensor.
        """
        region, shape, rest = self._region(index, sizes)
        block = np.asarray(tensor[region]).reshape(shape)[rest]
        return block.transpose(self._order)

    def view(self, tensor: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        """The parameter as a view of the whole tensor, to be written through."""
        _, shape, rest = self._region({}, sizes, whole=True)
        return tensor.reshape(shape)[rest].transpose(self._order)

    @property
    def _order(self) -> list[int]:
        return [self.letters.index(letter) for letter in self.ours if letter in self.letters]

    def _region(
        self, index: Index, sizes: Mapping[str, int], whole: bool = False
    ) -> tuple[tuple[slice, ...], list[int], tuple[slice | int, ...]]:
        """What to read of each axis, the shape that has once split, and what to keep of that."""
        region, shape, kept = [], [], []
        for outer, *inner in self.stored:
            first, last = (0, outer.size(sizes)) if whole else outer.bounds(index, sizes)
            step = math.prod(token.size(sizes) for token in inner)
            region.append(slice(first * step, last * step))
            shape += [last - first, *(token.size(sizes) for token in inner)]
            kept.append(_keep(outer, slice(None), 0 if not whole else outer.pick))
            kept += [_keep(t, slice(*t.bounds(index, sizes)), t.pick) for t in inner]
        return tuple(region), shape, tuple(kept)


def _keep(token: Token, of_letter: slice, of_turns: int) -> slice | int:
    return of_turns if token.letter is None else of_letter


@functools.cache
def parse_form(text: str) -> Form:
    """Reads a form; without an arrow the parameter is as it is stored."""
    left, _, right = text.partition("->")
    stored = tuple(
        tuple(_token(word) for word in axis.strip("()").split())
        for axis in re.findall(r"\([^)]*\)|\S+", left)
    )
    form = Form(stored, tuple(right.split()))
    return form if form.ours else Form(stored, form.letters)


def _token(word: str) -> Token:
    turns = re.fullmatch(r"(\d+)/(\d+)", word)
    return Token(pick=int(turns[1]), parts=int(turns[2])) if turns else Token(word)


def letter_sizes(form: Form, shape: Sequence[int]) -> dict[str, int]:
    """Sizes of our letters, from the shape of one layer's parameter."""
    return dict(zip(form.ours, shape, strict=True))
