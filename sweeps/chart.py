"""Line charts as SVG text: no libraries, no scripts, readable in a page and on their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

# Colours that people with colour-blindness tell apart (Okabe and Ito, 2008), then again dashed.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_WIDTH, _HEIGHT = 760, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 14, 44
_MOST_POINTS = 400


@dataclass(frozen=True)
class Line:
    """One curve; `dots` draws its points without joining them. Not-finite points are left out."""

    label: str
    points: Sequence[Point]
    dots: bool = False


def chart(lines: Sequence[Line], x_label: str, y_label: str, log_x: bool = False) -> str:
    """An SVG picture of the curves; the text '' when there is nothing to draw."""
    shown = [Line(line.label, _finite(line.points, log_x), line.dots) for line in lines]
    points = [point for line in shown for point in line.points]
    if not points:
        return ""
    x = _axis([p[0] for p in points], _LEFT, _WIDTH - _RIGHT, log_x)
    y = _axis([p[1] for p in points], _HEIGHT - _BOTTOM, _TOP, log=False)
    drawn = [_curve(number, line, x, y) for number, line in enumerate(shown) if line.points]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'role="img" aria-label="{escape(y_label)} over {escape(x_label)}">',
            *_grid(x, y, x_label, y_label),
            *drawn,
            "</svg>",
        ]
    )


def colour(number: int) -> str:
    """The colour of the curve with this number; a page's legend uses the same."""
    return COLOURS[number % len(COLOURS)]


@dataclass(frozen=True)
class _Axis:
    place: Callable[[float], float]
    ticks: Sequence[float]


def _axis(values: Sequence[float], start: float, end: float, log: bool) -> _Axis:
    low, high = min(values), max(values)
    if high == low:
        pad = abs(low) * 0.1 or 1.0
        low, high = (low / 2, high * 2) if log else (low - pad, high + pad)
    scale = math.log10 if log else float

    def place(value: float) -> float:
        return start + (end - start) * (scale(value) - scale(low)) / (scale(high) - scale(low))

    ticks = _log_ticks(low, high) if log else _ticks(low, high)
    if all(float(value).is_integer() for value in values):  # there is no step 2.5
        ticks = [tick for tick in ticks if float(tick).is_integer()]
    return _Axis(place, ticks)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers within the range, about six."""
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if len(powers) > 4 else (1, 3) if len(powers) > 2 else (1, 2, 5)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def _grid(x: _Axis, y: _Axis, x_label: str, y_label: str) -> Iterable[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    text = 'font-family="sans-serif" font-size="12" fill="currentColor"'
    for tick in y.ticks:
        at = f"{y.place(tick):.1f}"
        yield f'<path d="M{_LEFT} {at}H{right}" stroke="#8886" stroke-width="1"/>'
        yield f'<text x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end" {text}>{tick:.4g}</text>'
    for tick in x.ticks:
        at = f"{x.place(tick):.1f}"
        yield f'<path d="M{at} {_TOP}V{bottom}" stroke="#8886" stroke-width="1"/>'
        yield f'<text x="{at}" y="{bottom + 16}" text-anchor="middle" {text}>{tick:.4g}</text>'
    below = f'x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}"'
    yield f'<text {below} text-anchor="middle" {text}>{escape(x_label)}</text>'
    up = f'transform="translate(14 {(bottom + _TOP) / 2}) rotate(-90)"'
    yield f'<text {up} text-anchor="middle" {text}>{escape(y_label)}</text>'


def _curve(number: int, line: Line, x: _Axis, y: _Axis) -> str:
    places = [(f"{x.place(a):.1f}", f"{y.place(b):.1f}") for a, b in line.points]
    title = f"<title>{escape(line.label)}</title>"
    if line.dots or len(places) == 1:
        dots = "".join(f'<circle cx="{a}" cy="{b}" r="4"/>' for a, b in places)
        return f'<g fill="{colour(number)}">{title}{dots}</g>'
    dash = ' stroke-dasharray="6 3"' if number >= len(COLOURS) else ""
    path = "M" + "L".join(f"{a} {b}" for a, b in places)
    return (
        f'<path d="{path}" fill="none" stroke="{colour(number)}" stroke-width="1.8"{dash}>'
        f"{title}</path>"
    )


def _finite(points: Sequence[Point], log_x: bool) -> list[Point]:
    """Points that can be drawn, thinned to a few hundred, the last one kept."""
    good = [p for p in points if all(map(math.isfinite, p)) and (p[0] > 0 or not log_x)]
    every = max(1, math.ceil(len(good) / _MOST_POINTS))
    return [p for n, p in enumerate(good) if n % every == 0 or n == len(good) - 1]
