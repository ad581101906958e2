"""Learning rate as a function of the step, on the host: it enters the compiled step as a number."""

from __future__ import annotations

import math

from configs.schema import ScheduleConfig


def learning_rate(step: int, peak: float, schedule: ScheduleConfig, train_steps: int) -> float:
    """The rate that update number `step` (1 for the first) is made with.

    Warm-up rises linearly: update t of w uses peak * t / w, so the first update is never wasted
    and update w is the first at the peak. The decay then runs from the peak, at the last update
    of the warm-up, to final_fraction * peak at update `total_steps`, and stays there.
    """
    total = schedule.total_steps or train_steps
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    if schedule.name == "constant":
        return peak
    start = schedule.warmup_steps
    if schedule.name == "wsd":
        decay = schedule.decay_steps or max(1, total // 10)
        start = max(start, total - decay)
    return peak * _decayed(_progress(step, start, total), schedule)


def _progress(step: int, start: int, end: int) -> float:
    """How far `step` is from start (0) to end (1)."""
    if step <= start:
        return 0.0
    return min(1.0, (step - start) / (end - start)) if end > start else 1.0


def _decayed(progress: float, schedule: ScheduleConfig) -> float:
    final = schedule.final_fraction
    if schedule.name == "cosine":
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))
    return 1 - (1 - final) * progress
