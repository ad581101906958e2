"""What a run measures: one table of names, tags, units and meanings, and where they are written.

    with MetricsLog(run_dir, start_step=0) as metrics:
        metrics.text("config", yaml_text)
        metrics.once({"perf/compile_seconds/train_step": 4.1, "init_seconds": 0.8})
        for step in ...:
            metrics.write(step, {"loss": 5.5, "grad_norm": 1.2, "tokens": 4096, ...})
            metrics.write(step, {"eval_loss": 5.4, "eval_tokens": 16384})   # an eval line

`write` takes names of this table or TensorBoard tags. A name goes to the tag that the table gives
it and, where the table says so, to `metrics.jsonl`; a tag (it holds a "/") to TensorBoard alone.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from training.tensorboard import EventFile, as_scalar

log = logging.getLogger("foldtext")


@dataclass(frozen=True)
class Metric:
    """One measured quantity: its TensorBoard tag, unit and meaning; `in_jsonl` if it is a field."""

    tag: str
    unit: str
    meaning: str
    in_jsonl: bool = False


METRICS: dict[str, Metric] = {
    "loss": Metric(
        "learning/loss", "nats per token", "Mean training loss of the step's batch.", True
    ),
    "perplexity": Metric("learning/perplexity", "", "exp(loss); written with every loss."),
    "grad_norm": Metric(
        "learning/grad_norm", "", "Global norm of the gradient before clipping.", True
    ),
    "param_norm": Metric("learning/param_norm", "", "Global norm of the parameters."),
    "learning_rate": Metric(
        "learning/current_learning_rate", "", "Learning rate of this step's update.", True
    ),
    "step_tokens": Metric("learning/total_weights", "tokens", "Tokens scored in this step."),
    "tokens": Metric("learning/total_tokens", "tokens", "Tokens scored since the start.", True),
    "step_time_seconds": Metric(
        "perf/step_time_seconds", "s", "Wall time of a step, waiting for data included.", True
    ),
    "tokens_per_second": Metric(
        "perf/tokens_per_sec", "tokens/s", "Tokens scored a second, all devices.", True
    ),
    "per_device_tokens_per_second": Metric(
        "perf/per_device_tokens_per_sec", "tokens/s", "Tokens scored a second and device."
    ),
    "per_device_tflops_per_second": Metric(
        "perf/per_device_tflops_per_sec", "TFLOP/s", "Model FLOPs (causal) a second and device."
    ),
    "mfu": Metric("perf/mfu", "fraction", "Model FLOPs (causal) over the device's peak."),
    "data_wait_seconds": Metric(
        "perf/data_wait_seconds", "s", "Part of the step that waited for the next batch.", True
    ),
    "init_seconds": Metric("perf/init_seconds", "s", "Making the train state."),
    "restore_seconds": Metric("perf/restore_seconds", "s", "Restoring the train state."),
    "checkpoint_seconds": Metric(
        "perf/checkpoint_seconds", "s", "Training stood still for this save."
    ),
    "bytes_in_use": Metric("memory/bytes_in_use", "bytes", "Device memory, the fullest device."),
    "balance": Metric(
        "context_parallel/balance", "ratio", "Attended pairs per context rank, max over mean."
    ),
    "padding_fraction": Metric("data/padding_fraction", "fraction", "Slots that are padding."),
    "epoch": Metric("data/epoch", "epochs", "Passes over the data so far."),
    "eval_loss": Metric(
        "eval/avg_loss", "nats per token", "Mean loss over all tokens of the eval split.", True
    ),
    "eval_perplexity": Metric("eval/avg_perplexity", "", "exp(eval_loss)."),
    "eval_tokens": Metric("eval/total_weights", "tokens", "Tokens of the eval split.", True),
}


class MetricsLog:
    """Writes metrics to TensorBoard and to `metrics.jsonl` in `run_dir`; a context manager.

    `start_step` is the number of steps already done: 0 for a new run, the restored step for a
    resumed one. Later points of an earlier process are hidden by TensorBoard, and superseded in
    `metrics.jsonl` because newer lines come later (`read_metrics`).

    Values are Python, NumPy or JAX scalars, or arrays of one element; None is left out. A value
    that is no number is reported once and left out, and so is a full disk: logging never ends a
    run. Pass `enabled=False` on every process but the first: then nothing is written.

    The line of a step is with the operating system when `write` returns, so a checkpoint saved
    after it never outlives it. TensorBoard is written by a background thread.
    """

    def __init__(self, run_dir: str | Path, start_step: int = 0, enabled: bool = True) -> None:
        self.first_step = start_step + 1
        self._complained: set[str] = set()
        self._cut_short = False
        self._events = EventFile(Path(run_dir), self.first_step) if enabled else None
        self._lines = _open_lines(Path(run_dir) / "metrics.jsonl") if enabled else None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Records `values` of step `step` (1 = after the first update)."""
        if self._events is None or self._lines is None:
            return
        numbers = with_perplexity(self._numbers(values))
        self._events.scalars(step, {_tag(name): value for name, value in numbers.items()})
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
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

    `path` is the file or its run directory. A line cut short by a killed process is left out.
    """
    path = Path(path)
    path = path / "metrics.jsonl" if path.is_dir() else path
    steps: dict[int, dict[str, float]] = {}
    for line in path.read_bytes().split(b"\n"):
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
