"""Copies of a run's scalars elsewhere: log.wandb and log.mlflow; services.py speaks to the two.

    with Mirrors(config, run_dir, read_metrics(run_dir)) as mirrors:     # none unless asked for
        mirrors.write(7, {"learning/loss": 5.5})                         # never waits
        mirrors.finished = True                                          # that was the last step

RUN/wandb.id and RUN/mlflow.id hold the run's id there, so that a resumed run goes on under it.
"""

from __future__ import annotations

import concurrent.futures
import logging
import queue
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from configs import Config
from training.metric_table import METRICS
from training.services import Point, Service, open_mlflow, open_wandb
from training.signals import in_background

log = logging.getLogger("foldtext")

_MOST_WAITING = 10_000  # points
_PATIENCE_SECONDS = 60
_EVAL_TAGS = frozenset(m.tag for m in METRICS.values() if m.when == "each evaluation")


class Mirror:
    """Hands scalars to a service in a thread; what goes wrong there is logged once and no more.

    `seen` has the last step and the last evaluated step that an earlier process handed over:
    services keep both points of a step that is given twice, so those steps are not given again.
    """

    def __init__(
        self, name: str, connect: Callable[[], Service], seen: tuple[int, int] = (0, 0)
    ) -> None:
        self._name = name
        self._connect = connect
        self._seen, self._seen_eval = seen
        self._waiting: queue.SimpleQueue[Point | None] = queue.SimpleQueue()
        self._ended: concurrent.futures.Future[None] | None = None
        self._finished = self._failed = False

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Hands over the scalars of a step, by TensorBoard tag; returns at once."""
        fresh = {tag: value for tag, value in scalars.items() if self._is_new(step, tag)}
        if self._failed or not fresh:
            return
        if self._waiting.qsize() >= _MOST_WAITING:
            self._fail("the service is too slow")
            return
        self._waiting.put((step, fresh))
        self._ended = self._ended or in_background(self._run)

    def end(self, finished: bool) -> None:
        """Tells the service that nothing follows; `wait` waits until it knows."""
        self._finished = finished
        self._waiting.put(None)

    def wait(self, deadline: float) -> None:
        """Returns when the service has everything, or at `deadline` of time.monotonic()."""
        if self._ended is None or self._failed:
            return
        concurrent.futures.wait([self._ended], timeout=max(0.0, deadline - time.monotonic()))
        if not self._ended.done():
            self._fail("the service did not answer in time")

    def _is_new(self, step: int, tag: str) -> bool:
        return step > (self._seen_eval if tag in _EVAL_TAGS else self._seen)

    def _run(self) -> None:
        try:
            service = self._connect()
            ended = False
            while not ended:
                points = self._next()
                ended = points[-1] is None
                service.log([point for point in points if point])
            service.close(self._finished)
        except Exception as error:  # of another project's package: nothing in it ends a run
            self._fail(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}")

    def _next(self) -> list[Point | None]:
        """All that waits, at least one; None comes last of all."""
        points = [self._waiting.get()]
        while not self._waiting.empty():
            points.append(self._waiting.get())
        return points

    def _fail(self, reason: str) -> None:
        if not self._failed:
            log.warning("%s: nothing more is mirrored, the run goes on: %s", self._name, reason)
        self._failed = True


class Mirrors:
    """The mirrors that a config asks for, maybe none; a context manager.

    `logged` is what earlier processes measured, by step. Set `finished` after the last step.
    """

    def __init__(
        self, config: Config, run_dir: Path, logged: Mapping[int, Mapping[str, float]]
    ) -> None:
        self.finished = False
        steps = (_last_step_with("loss", logged), _last_step_with("eval_loss", logged))
        self._mirrors = []
        for name, is_on, connect in (
            ("wandb", config.log.wandb, open_wandb),
            ("mlflow", config.log.mlflow, open_mlflow),
        ):
            id_file = run_dir / f"{name}.id"
            if is_on:
                seen = steps if id_file.exists() else (0, 0)
                connected = _connector(connect, config, id_file)
                self._mirrors.append(Mirror(f"log.{name}", connected, seen))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Hands the scalars of a step to each; returns at once."""
        for mirror in self._mirrors:
            mirror.write(step, scalars)

    def __enter__(self) -> Mirrors:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for mirror in self._mirrors:
            mirror.end(self.finished)
        for mirror in self._mirrors:
            mirror.wait(deadline)


def _connector(
    connect: Callable[[Config, str | None], Service], config: Config, id_file: Path
) -> Callable[[], Service]:
    def connected() -> Service:
        known = id_file.read_text(encoding="utf-8").strip() if id_file.exists() else None
        service = connect(config, known)
        id_file.write_text(f"{service.id}\n", encoding="utf-8")
        return service

    return connected


def _last_step_with(name: str, logged: Mapping[int, Mapping[str, float]]) -> int:
    return max((step for step, fields in logged.items() if name in fields), default=0)
