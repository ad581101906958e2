"""What a sweep says beyond its numbers: a best value at the edge of its range, a scaling law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.results import Result, numbers_of, swept_keys

_TUNED = ("optimizer.", "schedule.")  # more steps or a wider model are no optimum to be missed
_SAME_LOSS = ("context_parallel.", "mesh.", "init.strategy", "model.scan_layers", "model.remat")
_FLOPS = 6  # forward and backward, per parameter and token (arXiv 2001.08361)


def edge_warnings(results: Sequence[Result]) -> list[str]:
    """One line for each tuned number whose best value is the smallest or largest of its range.

    The range holds the values of all jobs that ended, diverged ones too: those are an edge that
    was seen. Two values have no inside and say nothing.
    """
    ended = [result for result in results if result.exit_code in (0, 1)]
    best = min(ended, key=lambda result: result.goal, default=None)
    if best is None or not math.isfinite(best.goal):
        return []
    lines = []
    for key in swept_keys(ended):
        numbers = numbers_of(ended, key) if key.startswith(_TUNED) else None
        if numbers is None or len(set(numbers.values())) < 3:
            continue
        here = numbers[best.number]
        for edge, word in ((min, "smallest"), (max, "largest")):
            if here == edge(numbers.values()):
                beyond = "smaller" if edge is min else "larger"
                lines.append(
                    f"{key}={best.values[key]} is the best of job {best.number} and the {word} "
                    f"that was tried; the optimum may lie at {beyond} values"
                )
    return lines


def agreement(results: Sequence[Result]) -> str | None:
    """How far the last losses lie apart where nothing was swept that may change them.

    None when other keys were swept, or fewer than two jobs are done.
    """
    losses = [r.final_loss for r in results if r.exit_code == 0 and r.final_loss is not None]
    keys = swept_keys(results)
    if len(losses) < 2 or not keys or not all(key.startswith(_SAME_LOSS) for key in keys):
        return None
    apart = max(losses) - min(losses)
    return (
        f"the last losses of {len(losses)} jobs lie {apart:.1e} apart; {', '.join(keys)} "
        "should change them by rounding alone"
    )


@dataclass(frozen=True)
class ScalingLaw:
    """loss(C) = irreducible + factor * C ** -exponent, with C in FLOPs (arXiv 2203.15556)."""

    irreducible: float
    factor: float
    exponent: float
    points: tuple[tuple[float, float], ...]

    def __call__(self, flops: float) -> float:
        return self.irreducible + self.factor * flops**-self.exponent

    def __str__(self) -> str:
        offset = f"{self.irreducible:.3f} + " if self.irreducible else ""
        return f"loss = {offset}{self.factor:.3g} * C^-{self.exponent:.3f}, C = 6 N D FLOPs"


def scaling_law(results: Sequence[Result]) -> ScalingLaw | None:
    """Fits a law to a ladder: jobs of at least three model sizes over four times the compute."""
    done = [r for r in results if math.isfinite(r.goal) and r.parameters and r.tokens]
    points = sorted((_FLOPS * r.parameters * r.tokens, r.goal) for r in done)  # type: ignore[operator]
    sizes = {result.parameters for result in done}
    if len(sizes) < 3 or points[-1][0] < 4 * points[0][0]:
        return None
    return fit(points)


def fit(points: Sequence[tuple[float, float]]) -> ScalingLaw:
    """Least squares of log(loss - irreducible) on log C; the offset by trying (0 below 4 points).

    A law has two or three numbers, so three points do not tell an offset from a curve.
    """
    lowest = min(loss for _, loss in points)
    offsets = [lowest * k / 200 for k in range(200)] if len(points) > 3 else [0.0]
    laws = [_power_law(points, offset) for offset in offsets]
    return min(laws, key=lambda law: sum((law(x) - y) ** 2 for x, y in points))


def _power_law(points: Sequence[tuple[float, float]], offset: float) -> ScalingLaw:
    xs = [math.log(flops) for flops, _ in points]
    ys = [math.log(loss - offset) for _, loss in points]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - x_mean) ** 2 for x in xs
    )
    return ScalingLaw(offset, math.exp(y_mean - slope * x_mean), -slope, tuple(points))
