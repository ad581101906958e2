"""Where each token of a sequence lies: one permutation and its inverse, shared by everyone.

A causal sequence that is cut into `cp` contiguous shards gives the last rank nearly all the
attention work. The zigzag layout folds the sequence in the middle instead: rank r holds chunk r of
the head and chunk 2*cp-1-r of the tail, and every rank attends to the same number of pairs. The
striped layout deals tokens out one by one, rank r holding r, r+cp, r+2*cp, ...

Sources: zigzag as in Megatron-LM and ring-flash-attention (zhuzilin); striped as in Brandon et al.,
"Striped Attention: Faster Ring Attention for Causal Transformers", 2023 (arXiv:2311.09431).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)

LAYOUTS: Final = ("zigzag", "striped", "contiguous")


class Chunk(NamedTuple):
    """A run of slots whose original indices are start, start + step, ..., `length` of them."""

    start: int
    length: int
    step: int = 1

    def positions(self) -> np.ndarray:
        """Original indices of the run, int32 [length]: Chunk(1, 3, step=2) -> [1, 3, 5]."""
        return self.start + self.step * np.arange(self.length, dtype=np.int32)


@dataclass(frozen=True)
class Layout:
    """The order of a sequence over `cp` context ranks.

    `name` is zigzag, striped or contiguous; any `cp` from 1 up is legal, odd ones too, and cp=1 is
    the identity for every name. Rank r holds slots r*S/cp to (r+1)*S/cp - 1 of the folded sequence.
    Raises ValueError for an unknown name or a cp below 1.

    >>> Layout("zigzag", 2).permutation(8)      # [0 1 6 7 | 2 3 4 5]
    array([0, 1, 6, 7, 2, 3, 4, 5], dtype=int32)
    >>> Layout("striped", 2).permutation(8)     # [0 2 4 6 | 1 3 5 7]
    array([0, 2, 4, 6, 1, 3, 5, 7], dtype=int32)
    """

    name: str
    cp: int

    def __post_init__(self) -> None:
        if self.name not in LAYOUTS:
            raise ValueError(f"layout {self.name!r} is not one of {', '.join(LAYOUTS)}")
        if self.cp < 1:
            raise ValueError(f"cp={self.cp}: a layout needs at least 1 context rank")

    @property
    def is_identity(self) -> bool:
        """Whether folding moves nothing: the contiguous layout, and every layout at cp=1."""
        return self.cp == 1 or self.name == "contiguous"

    @property
    def chunks_per_rank(self) -> int:
        """Runs of evenly spaced tokens that a rank holds: 2 for zigzag at cp > 1, else 1."""
        return 2 if self.name == "zigzag" and self.cp > 1 else 1

    @property
    def multiple(self) -> int:
        """What a sequence length has to be a multiple of: 2*cp for zigzag at cp > 1, else cp."""
        return self.cp * self.chunks_per_rank

    def check(self, seq_len: int) -> None:
        """Raise ValueError, naming the nearest legal lengths, unless `seq_len` can be laid out."""
        if seq_len > 0 and seq_len % self.multiple == 0:
            return
        below = seq_len // self.multiple * self.multiple
        nearest = [below] if below > 0 else []
        nearest.append(max(below, 0) + self.multiple)
        rule = "2*cp" if self.chunks_per_rank == 2 else "cp"
        raise ValueError(
            f"seq_len={seq_len} does not fit the {self.name} layout at cp={self.cp}: it has to be "
            f"a multiple of {rule} = {self.multiple}; nearest legal: "
            + " or ".join(str(length) for length in nearest)
        )

    def chunks(self, seq_len: int) -> tuple[tuple[Chunk, ...], ...]:
        """The chunks of each rank, rank by rank, in the order in which they lie in its shard.

        Layout("zigzag", 2).chunks(8) -> ((Chunk(0, 2), Chunk(6, 2)), (Chunk(2, 2), Chunk(4, 2)))
        Layout("striped", 2).chunks(8) -> ((Chunk(0, 4, step=2),), (Chunk(1, 4, step=2),))
        """
        self.check(seq_len)
        length = seq_len // self.multiple
        if self.chunks_per_rank == 2:
            last = 2 * self.cp - 1
            pairs = ((rank, last - rank) for rank in range(self.cp))
            return tuple((Chunk(a * length, length), Chunk(b * length, length)) for a, b in pairs)
        if self.name == "striped":
            return tuple((Chunk(rank, length, self.cp),) for rank in range(self.cp))
        return tuple((Chunk(rank * length, length),) for rank in range(self.cp))

    def permutation(self, seq_len: int) -> np.ndarray:
        """Slot -> original index, int32 [seq_len], read-only; it is also each slot's position.

        zigzag, 12 tokens, cp=3 -> [0 1 10 11 | 2 3 8 9 | 4 5 6 7]
        """
        return _permutation(self, seq_len)

    def inverse(self, seq_len: int) -> np.ndarray:
        """Original index -> slot, int32 [seq_len], read-only.

        zigzag, 12 tokens, cp=3 -> [0 1 4 5 8 9 10 11 6 7 2 3]
        """
        return _inverse(self, seq_len)

    def fold(self, x: ArrayT, dim: int = 1) -> ArrayT:
        """Take `x` from contiguous order to this layout along `dim`; a whole array, not a shard.

        Any shape and dtype. NumPy in, NumPy out; JAX in, JAX out, traceable. Every piece's place is
        known while tracing, so that XLA reads once, writes once and never gathers.
        Raises ValueError for a length that does not fit or a `dim` that is not there.
        """
        return _move(self, x, dim, folded=False)

    def unfold(self, x: ArrayT, dim: int = 1) -> ArrayT:
        """Take `x` from this layout back to contiguous order along `dim`; undoes `fold`."""
        return _move(self, x, dim, folded=True)


@functools.lru_cache(maxsize=64)
def _permutation(layout: Layout, seq_len: int) -> np.ndarray:
    runs = [chunk.positions() for rank in layout.chunks(seq_len) for chunk in rank]
    return _frozen(np.concatenate(runs))


@functools.lru_cache(maxsize=64)
def _inverse(layout: Layout, seq_len: int) -> np.ndarray:
    slots = np.empty(seq_len, np.int32)
    slots[_permutation(layout, seq_len)] = np.arange(seq_len, dtype=np.int32)
    return _frozen(slots)


def _frozen(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


def positive_dim(shape: tuple[int, ...], dim: int) -> int:
    """`dim` counted from the front; ValueError if an array of `shape` has no such dimension."""
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"sequence dimension {dim} is not there: the array has shape {shape}")
    return dim % len(shape)


def _move(layout: Layout, x: ArrayT, dim: int, *, folded: bool) -> ArrayT:
    dim = positive_dim(x.shape, dim)
    if layout.cp == 1:
        return x
    layout.check(x.shape[dim])
    if layout.is_identity:
        return x
    if layout.name == "striped":
        return _transpose(x, dim, layout.cp, folded)
    if isinstance(x, np.ndarray):
        sizes, order = _pieces(x.shape[dim], layout.cp, folded)
        pieces = np.split(x, np.cumsum(sizes[:-1]), axis=dim)
        return np.concatenate([pieces[i] for i in order], axis=dim)
    # XLA's TPU compiler makes a copy of each piece in place; its other compilers write one loop,
    # which many pieces slow down, but into which they fuse the reversal, which TPU's does not.
    on_tpu = functools.partial(_concatenate_pieces, dim=dim, cp=layout.cp, folded=folded)
    elsewhere = functools.partial(_pair_halves, dim=dim, cp=layout.cp, folded=folded)
    return lax.platform_dependent(x, tpu=on_tpu, default=elsewhere)


# Zigzag in two forms, neither with a gather. Both are built from operations that JAX transposes to
# one another (split and concatenate), where slicing would become a sum of paddings.


def _pieces(seq_len: int, cp: int, folded: bool) -> tuple[list[int], list[int]]:
    """Lengths of the pieces to cut, and their new order; two chunks that stay together are one.

    12 tokens, cp=3: [2, 2, 4, 2, 2] and 0 4 1 3 2; folded: [2, 2, 2, 2, 4] and 0 2 4 3 1.
    """
    sizes = [seq_len // (2 * cp)] * (2 * cp - 1)
    if folded:
        sizes[-1] *= 2
        return sizes, [*range(0, 2 * cp - 1, 2), *range(2 * cp - 3, 0, -2)]
    sizes[cp - 1] *= 2
    pairs = [piece for rank in range(cp - 1) for piece in (rank, 2 * cp - 2 - rank)]
    return sizes, [*pairs, cp - 1]


def _concatenate_pieces(x: jax.Array, dim: int, cp: int, folded: bool) -> jax.Array:
    sizes, order = _pieces(x.shape[dim], cp, folded)
    pieces = lax.split(x, sizes, axis=dim)
    return lax.concatenate([pieces[i] for i in order], dimension=dim)


def _pair_halves(x: jax.Array, dim: int, cp: int, folded: bool) -> jax.Array:
    """The head's chunks in order and the tail's in reverse, side by side: [cp, 2, chunk]."""
    before, after, chunk = x.shape[:dim], x.shape[dim + 1 :], x.shape[dim] // (2 * cp)
    source, target = (dim + 1, dim) if folded else (dim, dim + 1)
    halves = x.reshape(*before, *((cp, 2) if folded else (2, cp)), chunk, *after)
    head, tail = lax.split(halves, (1, 1), axis=source)
    tail = lax.rev(tail, (dim if folded else dim + 1,))
    column = (*before, *((1, cp) if folded else (cp, 1)), chunk, *after)
    columns = [head.reshape(column), tail.reshape(column)]
    return lax.concatenate(columns, dimension=target).reshape(x.shape)


def _transpose(x: ArrayT, dim: int, cp: int, folded: bool) -> ArrayT:
    """Striped as a transpose: [S] is seen as [S/cp, cp] and turned round; folded, as [cp, S/cp]."""
    rows = x.shape[dim] // cp
    grid = (cp, rows) if folded else (rows, cp)
    tall = x.reshape(*x.shape[:dim], *grid, *x.shape[dim + 1 :])
    return tall.swapaxes(dim, dim + 1).reshape(x.shape)
