"""What the jobs of a sweep left behind, read from their directories once."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from configs.overrides import Override, parse
from sweeps.job import TERMINAL, Record, read_record

Curve = tuple[tuple[int, float], ...]  # (step, value)

_STATUS = {0: "done", 2: "refused", 130: "stopped", 143: "stopped"}


@dataclass(frozen=True)
class Result:
    """One job; a value that it never had is None. Losses are in nats per token."""

    number: int
    overrides: tuple[str, ...]
    exit_code: int | None
    minutes: float
    folder: Path
    losses: Curve = ()
    eval_losses: Curve = ()
    tokens_per_second: float | None = None
    tokens: int | None = None
    parameters: int | None = None
    compile_seconds: float | None = None
    not_finite: bool = False
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """done, refused, failed, diverged, stopped, or unfinished (waiting, or cut off)."""
        if self.exit_code is None:
            return "unfinished"
        if self.exit_code == 1 and self.not_finite:
            return "diverged"
        return _STATUS.get(self.exit_code, "failed")

    @property
    def final_loss(self) -> float | None:
        return self.losses[-1][1] if self.losses else None

    @property
    def best_loss(self) -> float | None:
        finite = [loss for _, loss in self.losses if math.isfinite(loss)]
        return min(finite, default=None)

    @property
    def eval_loss(self) -> float | None:
        """The last evaluation's."""
        return self.eval_losses[-1][1] if self.eval_losses else None

    @property
    def goal(self) -> float:
        """What a sweep minimises: eval loss, or the final loss without one; inf if not done."""
        loss = self.final_loss if self.eval_loss is None else self.eval_loss
        return (
            loss if self.exit_code == 0 and loss is not None and math.isfinite(loss) else math.inf
        )


def objective(folder: Path) -> float:
    """What the job in `folder` returns to Hydra's sweeper: its eval loss, inf when it diverged."""
    record = read_record(folder)
    return _result(folder, record).goal if record else math.inf


def read_results(sweep_dir: Path) -> list[Result]:
    """The results of all jobs under `sweep_dir`, in their order."""
    records = {file.parent: read_record(file.parent) for file in sweep_dir.glob("*/job.json")}
    found = [_result(folder, record) for folder, record in records.items() if record]
    return sorted(found, key=lambda result: result.number)


def swept_keys(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ between jobs, as the overrides order them."""
    keys = dict.fromkeys(key for result in results for key in result.values)
    return [key for key in keys if len({result.values.get(key) for result in results}) > 1]


def numbers_of(results: Sequence[Result], key: str) -> dict[int, float] | None:
    """The value of `key` by job number, or None where one is no number."""
    try:
        return {result.number: float(result.values[key]) for result in results}
    except (KeyError, ValueError):
        return None


def _result(folder: Path, record: Record) -> Result:
    from training.metrics import read_metrics

    steps = read_metrics(folder)
    speeds = [line["tokens_per_second"] for line in steps.values() if "tokens_per_second" in line]
    last = {name: value for line in steps.values() for name, value in line.items()}
    log, losses = _read(folder / "train.log"), _curve(steps, "loss")
    overrides: list[Override] = [parse(word) for word in record.overrides]
    return Result(
        number=record.number,
        overrides=record.overrides,
        exit_code=record.exit_code,
        minutes=record.seconds / 60,
        folder=folder,
        losses=losses,
        eval_losses=_curve(steps, "eval_loss") or _evaluated(folder),
        tokens_per_second=statistics.median(speeds[1:] or speeds) if speeds else None,
        tokens=_whole(last.get("tokens")),
        parameters=_whole(_said(log, r"init: ([\d,]+) parameters")),
        compile_seconds=_said(log, r"compile: train step in ([\d.]+) s"),
        not_finite=(bool(losses) and not math.isfinite(losses[-1][1])) or _says_not_finite(log),
        values={o.key: (o.value or "").strip().strip("'\"") for o in overrides},
    )


def _curve(steps: Mapping[int, Mapping[str, float]], name: str) -> Curve:
    return tuple((step, line[name]) for step, line in steps.items() if name in line)


def _evaluated(folder: Path) -> Curve:
    """What a job with mode=eval said last: it leaves no metrics."""
    said = re.findall(r"^eval: step=(\d+) eval_loss=(\S+)", _read(folder / TERMINAL), re.MULTILINE)
    return tuple((int(step), float(loss)) for step, loss in said[-1:])


def _says_not_finite(log: str) -> bool:
    """A parameter can overflow although the loss is finite; the last error tells."""
    errors = [line for line in log.splitlines() if " ERROR " in line]
    return "not finite" in errors[-1] if errors else False


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _said(log: str, pattern: str) -> float | None:
    """The number in the last line of the log that has the pattern."""
    found = re.findall(pattern, log)
    return float(found[-1].replace(",", "")) if found else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
