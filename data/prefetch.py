"""Batches made ahead by background threads, from any step on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from data.dataset import Dataset, RowChoice
from data.rows import Batch

T = TypeVar("T")

MAX_THREADS = 4


class BatchIterator(Generic[T]):
    """Iterates over batches that threads make ahead; `with` or `close` ends the threads.

    What fails in a thread is raised by `next` at the batch that failed, and ends the iterator.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._iterator is None:
            raise StopIteration
        try:
            return next(self._iterator)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drops what was made ahead and lets the threads end; harmless when repeated."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@overload
def batches(
    dataset: Dataset, start_step: int = 0, prefetch: int = 2, *, rows: RowChoice = None
) -> BatchIterator[Batch]: ...


@overload
def batches(
    dataset: Dataset,
    start_step: int,
    prefetch: int,
    transform: Callable[[Batch], T],
    rows: RowChoice = None,
) -> BatchIterator[T]: ...


def batches(
    dataset: Dataset,
    start_step: int = 0,
    prefetch: int = 2,
    transform: Callable[[Batch], Any] = lambda batch: batch,
    rows: RowChoice = None,
) -> BatchIterator[Any]:
    """Iterates over the batches of a data set from `start_step` on, without reading those before.

    Args:
      dataset: where the batches are from.
      start_step: number of the first batch.
      prefetch: how many batches are made ahead; 0 makes each when it is asked for.
      transform: applied to every batch in the thread that made it, several at a time perhaps.
      rows: which rows of each global batch; see `Dataset.batch`.
    """
    import grain

    num_batches = sys.maxsize if dataset.num_batches is None else dataset.num_batches
    if start_step >= num_batches:
        return BatchIterator(None)
    made = grain.MapDataset.range(start_step, num_batches).map(
        lambda step: transform(dataset.batch(int(step), rows))
    )
    options = grain.ReadOptions(
        num_threads=min(prefetch, MAX_THREADS), prefetch_buffer_size=prefetch
    )
    iterator = iter(made.to_iter_dataset(options))
    iterator.start_prefetch()
    return BatchIterator(iterator)
