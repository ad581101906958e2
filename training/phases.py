"""One stopwatch for the parts of a run: how many seconds went where."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds spent in named phases, added up until somebody takes them.

        clock = Phases()
        with clock.phase("data_wait"):
            batch = next(batches)
        clock.take()  # {"data_wait": 0.0021}, and starts again from nothing

    Phases may nest; each counts its whole duration. A phase left by an exception counts too.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the duration of the block to the seconds of `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self.seconds(name) + time.perf_counter() - start

    def seconds(self, name: str) -> float:
        """Seconds of `name` since the last `take`; 0.0 for a phase that did not happen."""
        return self._seconds.get(name, 0.0)

    def take(self) -> dict[str, float]:
        """All seconds since the last `take`, by name."""
        seconds, self._seconds = self._seconds, {}
        return seconds
