"""Pictures of a run for TensorBoard's Images tab, drawn with Pillow."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jax.sharding import Mesh
from PIL import Image, ImageDraw, ImageFont
from tensorboardX.proto.summary_pb2 import Summary

_WIDTH, _HEIGHT, _MARGIN = 640, 400, 40
_INK, _PALE, _PAPER = (40, 40, 40), (150, 150, 150), (255, 255, 255)
_COLORS = ((33, 113, 181), (217, 95, 14), (35, 139, 69), (117, 107, 177), (203, 24, 29))


def bar_chart(title: str, series: Mapping[str, np.ndarray]) -> Image.Image:
    """Numbers [C] of several series side by side, a group of bars a rank, from zero up."""
    image = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    draw = ImageDraw.Draw(image)
    _write(draw, (_MARGIN, 12), title, 20)
    top = max(int(values.max()) for values in series.values())
    num_ranks = len(next(iter(series.values())))
    group = (_WIDTH - 2 * _MARGIN) / num_ranks
    bar = group * 0.8 / len(series)
    for number, values in enumerate(series.values()):
        for rank, value in enumerate(values):
            x = _MARGIN + rank * group + group * 0.1 + number * bar
            _bar(draw, x, bar, float(value) / top, _COLORS[number])
    every = math.ceil(30 / group)
    for rank in range(0, num_ranks, every):
        center = _MARGIN + (rank + 0.5) * group
        _write(draw, (center, _HEIGHT - 47), str(rank), 15, anchor="ma")
    _write(draw, (_WIDTH / 2, _HEIGHT - 24), "context rank", 15, anchor="ma")
    draw.line((_MARGIN, _HEIGHT - 50, _WIDTH - _MARGIN, _HEIGHT - 50), fill=_INK)
    _legend(draw, [f"{name}: max {int(values.max()):,}" for name, values in series.items()])
    return image


def mesh_map(mesh: Mesh) -> Image.Image:
    """The devices of a mesh as a grid; a color is a context rank, a number a device's id.

    The leading axes run down, the trailing ones across; axes of size 1 are left out.
    """
    shape = {axis: size for axis, size in mesh.shape.items() if size > 1} or {"device": 1}
    down, across = _split(shape)
    rows, columns = math.prod(down.values()), math.prod(across.values())
    cell = max(12, min(90, 1200 // max(rows, columns)))
    left, up = 30 + 8 * len(_place(down, 0)), 90
    size = (left + columns * cell + 30, up + rows * cell + 20)
    image = Image.new("RGB", (max(size[0], 420), size[1]), _PAPER)
    draw = ImageDraw.Draw(image)
    _write(draw, (12, 10), " ".join(f"{axis}={size}" for axis, size in shape.items()), 18)
    _write(draw, (12, 36), f"down: {'*'.join(down) or '-'}   across: {'*'.join(across)}", 13)
    for row, column in np.ndindex(rows, columns):
        corner = (left + column * cell, up + row * cell)
        place = _coordinates(down, row) | _coordinates(across, column)
        _cell(
            draw,
            corner,
            cell,
            str(mesh.devices.flat[row * columns + column].id),
            place.get("context", 0),
        )
    _labels(draw, down, across, cell, (left, up))
    return image


def image_summary(tag: str, image: Image.Image) -> Summary:
    """The picture as a PNG under `tag`."""
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    width, height = image.size
    content = Summary.Image(
        width=width, height=height, colorspace=3, encoded_image_string=png.getvalue()
    )
    return Summary(value=[Summary.Value(tag=tag, image=content)])


def _bar(draw: ImageDraw.ImageDraw, x: float, width: float, part: float, color: tuple) -> None:
    floor = _HEIGHT - 50
    height = part * (floor - 90)
    if height > 0:
        draw.rectangle((x, floor - height, x + max(width - 1, 1), floor), fill=color)


def _legend(draw: ImageDraw.ImageDraw, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        x = _MARGIN + number * 280
        draw.rectangle((x, 46, x + 14, 60), fill=_COLORS[number])
        _write(draw, (x + 22, 44), name, 16)


def _split(shape: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Axes that run down and axes that run across: the grid is at least as wide as high."""
    axes = list(shape)
    for count in reversed(range(len(axes))):
        down, across = axes[:count], axes[count:]
        if math.prod(shape[a] for a in down) <= math.prod(shape[a] for a in across):
            break
    return {a: shape[a] for a in down}, {a: shape[a] for a in across}


def _coordinates(axes: Mapping[str, int], number: int) -> dict[str, int]:
    places = np.unravel_index(number, tuple(axes.values())) if axes else ()
    return {axis: int(place) for axis, place in zip(axes, places, strict=True)}


def _place(axes: Mapping[str, int], number: int) -> str:
    return " ".join(f"{axis}={place}" for axis, place in _coordinates(axes, number).items())


def _labels(
    draw: ImageDraw.ImageDraw,
    down: Mapping[str, int],
    across: Mapping[str, int],
    cell: int,
    corner: tuple[int, int],
) -> None:
    """Coordinates beside the rows and above the columns, as many as there is room for."""
    left, up = corner
    for row in range(0, math.prod(down.values()), math.ceil(16 / cell)):
        middle = up + (row + 0.5) * cell
        _write(draw, (left - 8, middle), _place(down, row), 13, anchor="rm")
    room = 8 * len(_place(across, 0))
    for column in range(0, math.prod(across.values()), math.ceil(room / cell)):
        center = left + (column + 0.5) * cell
        _write(draw, (center, up - 8), _place(across, column), 13, anchor="mb")


def _cell(
    draw: ImageDraw.ImageDraw, corner: tuple[int, int], cell: int, text: str, color: int
) -> None:
    x, y = corner
    fill = _COLORS[color % len(_COLORS)]
    draw.rectangle((x, y, x + cell - 2, y + cell - 2), fill=fill, outline=_PALE)
    if cell >= 28:
        _write(draw, (x + cell / 2, y + cell / 2), text, 14, anchor="mm", fill=_PAPER)


def _write(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int,
    anchor: str = "la",
    fill: tuple[int, int, int] = _INK,
) -> None:
    draw.text(place, text, fill=fill, font=ImageFont.load_default(size), anchor=anchor)
