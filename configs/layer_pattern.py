"""Kinds of attention layers as text: `local*5,global` is five local layers, then a global one."""

from __future__ import annotations

import re
from typing import Final

KINDS: Final = ("global", "local", "global_nope", "local_nope")


def parse_pattern(text: str) -> tuple[str, ...]:
    """The kinds in order: `local*2,global` -> (local, local, global).

    Raises ValueError for a kind that does not exist or a count below 1.
    """
    kinds: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z_]+)\s*(?:\*\s*([1-9][0-9]*))?\s*", part)
        if match is None or match[1] not in KINDS:
            raise ValueError(f"{part.strip() or 'an empty part'} is none of {', '.join(KINDS)}")
        kinds += [match[1]] * int(match[2] or 1)
    return tuple(kinds)


def write_pattern(kinds: tuple[str, ...]) -> str:
    """The shortest pattern whose repetition gives these layers, as `parse_pattern` reads it."""
    length = next(n for n in range(1, len(kinds) + 1) if _repeats(kinds, n))
    parts: list[tuple[str, int]] = []
    for kind in kinds[:length]:
        count = parts.pop()[1] if parts and parts[-1][0] == kind else 0
        parts.append((kind, count + 1))
    return ",".join(kind if count == 1 else f"{kind}*{count}" for kind, count in parts)


def _repeats(kinds: tuple[str, ...], length: int) -> bool:
    return all(kind == kinds[i % length] for i, kind in enumerate(kinds))
