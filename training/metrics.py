"""What a run measures goes to TensorBoard and metrics.jsonl; metric_table.py has the names.

    with MetricsLog(run_dir, start_step=0) as metrics:
        metrics.text("config", yaml_text)
        metrics.once({"perf/compile_seconds/train_step": 4.1, "init_seconds": 0.8})
        for step in ...:
            metrics.write(step, {"loss": 5.5, "grad_norm": 1.2, "tokens": 4096, ...})
            metrics.write(step, {"eval_loss": 5.4, "eval_tokens": 16384})   # an eval line

`write` takes names of the table or TensorBoard tags. A name goes to the tag that the table gives
it and, where the table says so, to `metrics.jsonl`; a tag (it holds a "/") to TensorBoard alone.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX.proto.summary_pb2 import Summary

from training.hparams import session_end
from training.metric_table import METRICS
from training.mirrors import Mirrors
from training.tensorboard import EventFile, as_scalar

log = logging.getLogger("foldtext")


class MetricsLog:
    """Writes metrics to TensorBoard and to `metrics.jsonl` in `run_dir`; a context manager.

    `start_step` is the number of steps already done: 0 for a new run, the restored step for a
    resumed one. Later points of an earlier process are hidden by TensorBoard, and superseded in
    `metrics.jsonl` because newer lines come later (`read_metrics`).

    Values are Python, NumPy or JAX scalars, or arrays of one element; None is left out. A value
    that is no number is reported once and left out, and so is a full disk: logging never ends a
    run. Pass `enabled=False` on every process but the first: then nothing is written. `mirrors`
    get the same scalars.

    The line of a step is with the operating system when `write` returns, so a checkpoint saved
    after it never outlives it. TensorBoard is written by a background thread.
    """

    def __init__(
        self,
        run_dir: str | Path,
        start_step: int = 0,
        enabled: bool = True,
        mirrors: Mirrors | None = None,
    ) -> None:
        self.first_step = start_step + 1
        self._complained: set[str] = set()
        self._cut_short = False
        self._mirrors = mirrors
        self._events = EventFile(Path(run_dir), self.first_step) if enabled else None
        self._lines = _open_lines(Path(run_dir) / "metrics.jsonl") if enabled else None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Records `values` of step `step` (1 = after the first update)."""
        if self._events is None or self._lines is None:
            return
        numbers = with_perplexity(self._numbers(values))
        scalars = {_tag(name): value for name, value in numbers.items()}
        self._events.scalars(step, scalars)
        if self._mirrors is not None:
            self._mirrors.write(step, scalars)
        fields = {n: numbers[n] for n, m in METRICS.items() if m.in_jsonl and n in numbers}
        if fields:
            self._append(json.dumps({"step": int(step), **fields}) + "\n")

    def once(self, values: Mapping[str, Any]) -> None:
        """Records what is measured once a process (compile and init times), at its first step."""
        self.write(self.first_step, values)

    def text(self, tag: str, text: str) -> None:
        """Shows a Markdown text under `tag` in TensorBoard's Text tab, at the first step."""
        if self._events is not None:
            self._events.text(self.first_step, tag, text)

    def summary(self, summary: Summary, step: int | None = None) -> None:
        """Shows a picture, a histogram or the like in TensorBoard; at the first step by default."""
        if self._events is not None:
            self._events.summary(self.first_step if step is None else step, summary)

    def finish(self) -> None:
        """Notes that the run came to its last step."""
        self.summary(session_end())
        if self._mirrors is not None:
            self._mirrors.finished = True

    def flush(self) -> None:
        """Returns when every point so far is with the operating system."""
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Writes what is left and closes both files; closing twice is fine."""
        if self._events is not None:
            self._events.close()
        if self._lines is not None:
            os.close(self._lines)
        self._events = self._lines = None

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: str) -> None:
        assert self._lines is not None
        data = ("\n" + line if self._cut_short else line).encode()
        try:
            self._cut_short = os.write(self._lines, data) < len(data)
        except OSError as error:
            self._complain("metrics.jsonl", f"lines are lost: {error}")

    def _complain(self, name: str, complaint: str) -> None:
        if name not in self._complained:
            self._complained.add(name)
            log.warning("%s: %s", name, complaint)

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, float | int]:
        numbers = {}
        for name, value in values.items():
            number = as_scalar(value)
            if number is not None:
                numbers[name] = number
            elif value is not None:
                self._complain(name, f"not logged, {value!r} is not a number")
        return numbers


def read_metrics(path: str | Path) -> dict[int, dict[str, float]]:
    """The fields of `metrics.jsonl` by step, in order of step; later lines win, field by field.

    `path` is the file or its run directory. A line cut short by a killed process is left out;
    a missing file has no lines.
    """
    path = Path(path)
    path = path / "metrics.jsonl" if path.is_dir() else path
    steps: dict[int, dict[str, float]] = {}
    for line in (path.read_bytes() if path.exists() else b"").split(b"\n"):
        try:
            fields = json.loads(line)
            steps.setdefault(fields["step"], {}).update(fields)
        except (ValueError, KeyError, TypeError):
            continue
    return dict(sorted(steps.items()))


def with_perplexity(values: Mapping[str, float | int]) -> dict[str, float | int]:
    """`values` and, beside each loss, its perplexity exp(loss)."""
    derived: dict[str, float | int] = {}
    for loss, perplexity in (("loss", "perplexity"), ("eval_loss", "eval_perplexity")):
        if loss in values:
            value = values[loss]
            derived[perplexity] = math.exp(value) if value < 700 else value + math.inf
    return {**values, **derived}


def _tag(name: str) -> str:
    return METRICS[name].tag if name in METRICS else name


def _open_lines(path: Path) -> int:
    """A file descriptor that appends; a last line that was cut short is ended first."""
    lines = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    size = os.fstat(lines).st_size
    if size and os.pread(lines, 1, size - 1) != b"\n":
        os.write(lines, b"\n")
    return lines
