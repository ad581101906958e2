"""What a compiled program does: its matrix products and collectives, loops counted as they run.

`compiled.cost_analysis()` counts the body of a loop once. This reads the optimized HLO text and
sums from the entry on, through fusions, calls and loops, which run as often as the compiler knows.
All branches of a conditional count. All numbers are per device.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

COLLECTIVES: Final = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)
ELEMENT_BYTES: Final = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8} | {
    f"{sign}{bits}": bits // 8 for sign in "su" for bits in (8, 16, 32, 64)
}

_COMPUTATION: Final = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY: Final = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED: Final = re.compile(
    r"(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES: Final = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_GROUPS_OF_ONE: Final = re.compile(r"replica_groups=(?:\{(?:\{\d+\},?)+\}|\[\d+,1\]<=)")
_CONDITION: Final = re.compile(r"condition=%?([\w.\-]+)")
_CONTRACTED: Final = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


class Instruction(NamedTuple):
    """One line of HLO; `rest` is what follows the parenthesis that opens its operands."""

    name: str
    shape: str
    opcode: str
    rest: str


@dataclass
class Work:
    """Sums over a program, per device."""

    dot_flops: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    """How many of each kind run."""
    collective_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of their results, on this device."""

    def add(self, other: Work, times: int) -> None:
        """Add another sum, so many times."""
        self.dot_flops += times * other.dot_flops
        for kind, count in other.collectives.items():
            self.collectives[kind] += times * count
            self.collective_bytes[kind] += times * other.collective_bytes[kind]


def program_work(
    hlo_text: str, unknown_trips: int | None = None, *, read_conditions: bool = False
) -> Work:
    """What the program of `compiled.as_text()` does.

    Loops whose length the compiler does not tell count `unknown_trips` times; without it, one
    around anything that counts raises ValueError. A TPU's compiler tells no lengths; with
    `read_conditions` a loop that ends below a constant counts as often as that says, as those of
    jax.lax.scan do, which count from 0.
    """
    computations = dict(_computations(hlo_text.splitlines()))
    return _Program(computations, unknown_trips, read_conditions).work("")


def array_shapes(hlo_text: str) -> set[tuple[int, ...]]:
    """The shapes of all arrays in a program."""
    return {_dims(dims) for _, dims in _ARRAY.findall(hlo_text)}


def _computations(lines: Sequence[str]) -> Iterator[tuple[str, list[Instruction]]]:
    """Named computations; the entry's name is empty."""
    body: list[Instruction] = []
    for line in lines:
        header = _COMPUTATION.match(line)
        instruction = _INSTRUCTION.match(line)
        if header:
            body = []
            yield "" if header[1] else header[2], body
        elif instruction:
            body.append(Instruction(*instruction.groups()))


@dataclass(frozen=True)
class _Program:
    computations: Mapping[str, list[Instruction]]
    unknown_trips: int | None
    read_conditions: bool

    def work(self, name: str) -> Work:
        """What one run of a computation does."""
        total, body = Work(), self.computations[name]
        shapes = {instruction.name: instruction.shape for instruction in body}
        for instruction in body:
            kind = instruction.opcode.removesuffix("-start")
            if kind == "dot":
                total.dot_flops += _dot_flops(instruction, shapes)
            elif kind in COLLECTIVES:
                if not _GROUPS_OF_ONE.search(instruction.rest):  # not along an axis of one device
                    total.collectives[kind] += 1
                    total.collective_bytes[kind] += _result_bytes(instruction)
            else:
                for called in _called(instruction):
                    inner = self.work(called)
                    total.add(inner, self.trips(instruction, inner))
        return total

    def trips(self, instruction: Instruction, inner: Work) -> int:
        """How often what an instruction calls is run."""
        if instruction.opcode != "while" or inner == Work():
            return 1
        known = _TRIPS.search(instruction.rest)
        if known is not None:
            return int(known[1])
        limit = self._limit(instruction) if self.read_conditions else None
        if limit is not None:
            return limit
        if self.unknown_trips is None:
            raise ValueError(f"nobody knows how often {instruction.name} loops")
        return self.unknown_trips

    def _limit(self, loop: Instruction) -> int | None:
        """The constant that the loop's counter stays below, if that is how it ends."""
        condition = _CONDITION.search(loop.rest)
        body = self.computations[condition[1]] if condition else []
        if not body or body[-1].opcode != "compare" or "direction=LT" not in body[-1].rest:
            return None
        limits = {one.name: one.rest for one in body if one.opcode == "constant"}
        compared = re.findall(r"[\w.\-]+", body[-1].rest.split(")")[0])
        found = [re.match(r"\d+", limits[name]) for name in compared if name in limits]
        return int(found[0][0]) if len(found) == 1 and found[0] else None


def _called(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs."""
    branches = _BRANCHES.search(instruction.rest)
    names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
    return _CALLED.findall(instruction.rest) + names


def _dot_flops(dot: Instruction, shapes: Mapping[str, str]) -> int:
    left = re.findall(r"[\w.\-]+", dot.rest)[0]
    contracted = _CONTRACTED.search(dot.rest)
    assert contracted is not None
    left_dims = _dims(_ARRAY.findall(shapes[left])[0][1])
    depth = math.prod(left_dims[i] for i in _dims(contracted[1]))
    return 2 * depth * math.prod(_dims(_ARRAY.findall(dot.shape)[0][1]))


def _result_bytes(collective: Instruction) -> int:
    """Bytes of the result; an asynchronous start lists its operands and then its results."""
    arrays = _ARRAY.findall(collective.shape)
    if collective.opcode.endswith("-start"):
        arrays = arrays[1:2]
    return sum(ELEMENT_BYTES[dtype] * math.prod(_dims(dims)) for dtype, dims in arrays)


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(dim) for dim in text.split(",") if dim)
