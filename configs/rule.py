"""Rules that tie several keys together. Each names the keys, their values and a way out.

A rule is a generator of problems over the config and the mesh axis sizes. A size is None while
the axis is -1 and the devices are not counted; rules that need such a size then say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from configs.schema import Config

Sizes = Mapping[str, int | None]
AXES = ("data", "fsdp", "expert", "context", "tensor")


@dataclass(frozen=True)
class Rule:
    """`check` yields problems; it is only asked when all `keys` have values that are in range."""

    keys: tuple[str, ...]
    check: Callable[[Config, Sizes], Iterator[str]]


RULES: list[Rule] = []


def rule(*keys: str) -> Callable[[Callable[[Config, Sizes], Iterator[str]]], Rule]:
    """Adds a rule that reads these keys."""

    def add(check: Callable[[Config, Sizes], Iterator[str]]) -> Rule:
        RULES.append(Rule(keys, check))
        return RULES[-1]

    return add


def trains(config: Config) -> bool:
    return config.mode in ("train", "plan", "compile")


def multiples(value: int, unit: int) -> str:
    """The legal values around a length that is no multiple of `unit`: `8 or 12`."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)


def divisors(number: int) -> str:
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
