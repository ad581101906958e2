"""Who attends to whom in a folded sequence, as splash wants it: computed where it is needed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as splash_mask,
)

from parallelism.attention.blocks import AttentionMask
from parallelism.layout import Layout

_EMPTY: Final = np.zeros((1, 1), bool)
_FULL: Final = np.ones((1, 1), bool)


@dataclass(frozen=True)
class FoldedMask(splash_mask.Mask):
    """Who attends to whom in a folded sequence, bool [S, S], computed where it is needed."""

    mask: AttentionMask
    layout: Layout
    seq_len: int

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys of the whole sequence."""
        return self.seq_len, self.seq_len

    @property
    def q_sequence(self) -> np.ndarray:
        """The index of each query slot, int32 [S]; ranks get their parts of it."""
        return self.layout.permutation(self.seq_len)

    def mask_function(self, query_index: Any, key_slot: Any) -> Any:
        """Whether a query attends to the key in a slot; in NumPy here, on vectors in the kernel."""
        distance = query_index - slot_index(self.layout, self.seq_len, key_slot)
        low, high = self.mask.reach
        return (distance >= low) & (distance <= high)

    def __getitem__(self, block: tuple[slice, slice]) -> np.ndarray:
        """A block of the mask; just one element if all are the same, as long sequences need.

        Splash asks every block whether it is empty or full, and keeps none but the others.
        """
        rows, columns = ((part.start, part.stop) for part in block)
        first_query, last_query = _span(self.layout, self.seq_len, *rows)
        first_key, last_key = _span(self.layout, self.seq_len, *columns)
        low, high = self.mask.reach
        if last_query - first_key < low or first_query - last_key > high:
            return _EMPTY
        if first_query - last_key >= low and last_query - first_key <= high:
            return _FULL
        slots = np.arange(*columns, dtype=np.int32)
        return np.asarray(self.mask_function(self.q_sequence[block[0]][:, None], slots[None]))


@functools.lru_cache(maxsize=2**16)
def _span(layout: Layout, seq_len: int, start: int, stop: int) -> tuple[int, int]:
    """The first and the last token in some slots."""
    tokens = layout.permutation(seq_len)[start:stop]
    return int(tokens.min()), int(tokens.max())


def slot_index(layout: Layout, seq_len: int, slot: Any) -> Any:
    """The token in a slot: `layout.permutation` as arithmetic that a kernel can do."""
    if layout.is_identity:
        return slot
    length = seq_len // layout.multiple
    chunk = slot // length
    offset = slot - chunk * length
    if layout.name == "striped":
        return chunk + layout.cp * offset
    rank = chunk // 2
    mirrored = (chunk - 2 * rank) * (2 * layout.cp - 1 - 2 * rank)
    return (rank + mirrored) * length + offset
