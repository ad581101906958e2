"""Which parts each layer has, and which runs of layers repeat and can be scanned.

Five local layers and a global one, over and over, are one segment whose six slots are stacked:

    L L L L L G  L L L L L G  L L      26 layers of Gemma 3 are written shorter here
    [------- 2 repeats -----] [2 x L]  -> two segments: (L L L L L G) x 2, (L) x 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from configs.layer_pattern import parse_pattern
from configs.model_schema import ModelConfig


@dataclass(frozen=True)
class LayerKind:
    """What tells layers of one model apart.

    `window`: tokens that are seen, None for all; `rope`: which rotary tables are used, None for
    no rotation; `sparse`: experts in place of a dense feed-forward layer.
    """

    window: int | None
    rope: Literal["global", "local"] | None
    sparse: bool


@dataclass(frozen=True)
class Segment:
    """Layers `first`, `first + 1`, ...: a row of kinds, `repeats` times over."""

    first: int
    kinds: tuple[LayerKind, ...]
    repeats: int

    @property
    def num_layers(self) -> int:
        return len(self.kinds) * self.repeats

    def layers(self, slot: int) -> int | tuple[int, ...]:
        """The number of the layer at one place of the row; of a repeated row, all of them."""
        first, step = self.first + slot, len(self.kinds)
        if self.repeats == 1:
            return first
        return tuple(first + step * repeat for repeat in range(self.repeats))


def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """The kind of every layer."""
    pattern = parse_pattern(config.layer_pattern)
    return tuple(
        _kind(config, pattern[number % len(pattern)], number) for number in range(config.num_layers)
    )


def plan_layers(config: ModelConfig) -> tuple[Segment, ...]:
    """The segments of a model: repeated ones are scanned; unrolled, all layers are one row."""
    kinds = layer_kinds(config)
    if not config.scan_layers:
        return (Segment(0, kinds, 1),)
    segments, first = [], 0
    while first < len(kinds):
        length, repeats = _longest_repeat(kinds[first:])
        segments.append(Segment(first, kinds[first : first + length], repeats))
        first += length * repeats
    return tuple(segments)


def _kind(config: ModelConfig, name: str, number: int) -> LayerKind:
    local = name.startswith("local")
    rope = "local" if local and config.rope_local_theta is not None else "global"
    return LayerKind(
        window=config.window if local else None,
        rope=None if name.endswith("_nope") else rope,  # type: ignore[arg-type]
        sparse=config.moe.num_experts > 0 and number >= config.moe.dense_layers,
    )


def _longest_repeat(kinds: tuple[LayerKind, ...]) -> tuple[int, int]:
    """Length and repeats of the row at the start that covers most layers; (1, 1) if none recurs."""
    best = (1, 1)
    for length in range(1, len(kinds) // 2 + 1):
        row, repeats = kinds[:length], 1
        while kinds[repeats * length : (repeats + 1) * length] == row:
            repeats += 1
        if repeats > 1 and length * repeats > best[0] * best[1]:
            best = (length, repeats)
    return best
