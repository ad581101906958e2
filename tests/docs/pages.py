"""What README.md and docs/*.md ask a reader to type: commands with what they print, and Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))

_PROGRAMS = (
    'bash|cat|cd|curl|docker|echo|eval(?= ")|export|git|head|kubectl|ls|make|mkdir|mpirun|mypy|pip|'
    "printf|pytest|python|rm|ruff|sbatch|scancel|sh|source|squeue|srun|tail|tensorboard|wget"
)
_COMMAND = re.compile(rf"(?:\$ )?((?:[A-Z_]+=\S+ )*(?:{_PROGRAMS})\b(?! =).*)")
_IN_PROSE = re.compile(rf"(?<!`)`((?:{_PROGRAMS}) [^`]+)`")


@dataclass(frozen=True)
class Block:
    """Lines that are set apart, by a fence or by four spaces; `line` counts from 1."""

    line: int
    lines: tuple[str, ...]
    is_python: bool


@dataclass(frozen=True)
class Command:
    """One command: where it stands, what is typed, and the lines below it in its block."""

    page: str
    line: int
    text: str
    output: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The words as a shell has them, without the comment."""
        return shlex.split(self.text, comments=True)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def commands(page: str) -> list[Command]:
    """Every command of a page in its order; `a && b` is two."""
    text = (ROOT / page).read_text(encoding="utf-8")
    typed = [c for b in blocks(text) if not b.is_python for c in _in_block(page, b)]
    return sorted([*typed, *_in_prose(page, text)], key=lambda command: command.line)


def snippets(page: str) -> list[Block]:
    """Every piece of Python of a page in its order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for block in blocks(text) if block.is_python]


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a Markdown text."""
    numbered = list(enumerate(text.splitlines(), start=1))
    fences = 0
    kinds = []
    for _, line in numbered:
        is_fence = line.startswith("```")
        fences += is_fence
        inside = fences % 2 == 1 or is_fence
        kinds.append("fence" if inside else "indent" if line.startswith("    ") else "")
    for kind, group in groupby(zip(numbered, kinds, strict=True), key=lambda pair: pair[1]):
        lines = [entry for entry, _ in group]
        if kind == "fence":
            yield from _fenced(lines)
        elif kind == "indent":
            code = tuple(line[4:] for _, line in lines)
            yield Block(lines[0][0], code, re.match(r"(from|import) \w", code[0]) is not None)


def _fenced(lines: list[tuple[int, str]]) -> Iterator[Block]:
    """Blocks between fences; two can follow each other without a line in between."""
    while lines:
        end = next(i for i, (_, line) in enumerate(lines[1:], 1) if line.startswith("```"))
        code = tuple(line for _, line in lines[1:end])
        yield Block(lines[0][0] + 1, code, lines[0][1].startswith("```python"))
        lines = lines[end + 1 :]


def _in_block(page: str, block: Block) -> Iterator[Command]:
    """The commands of a block; what is no command belongs to the one before it."""
    joined: list[tuple[int, str]] = []
    for number, line in enumerate(block.lines, start=block.line):
        if joined and joined[-1][1].endswith("\\"):
            first, so_far = joined.pop()
            joined.append((first, f"{so_far[:-1].rstrip()} {line.strip()}"))
        else:
            joined.append((number, line))
    starts = [i for i, (_, line) in enumerate(joined) if _COMMAND.fullmatch(line)]
    for start, end in zip(starts, [*starts, len(joined)][1:], strict=True):
        number, line = joined[start]
        output = tuple(text for _, text in joined[start + 1 : end])
        match = _COMMAND.fullmatch(line)
        parts = match[1].split(" && ") if match else []
        for part in parts:
            yield Command(page, number, part, output if part == parts[-1] else ())


def _in_prose(page: str, text: str) -> Iterator[Command]:
    """Commands between backticks in running text, which may wrap."""
    plain = re.sub(r"^    .*$|^```(?:.|\n)*?^```$", _blank, text, flags=re.MULTILINE)
    for match in _IN_PROSE.finditer(plain):
        line = plain[: match.start()].count("\n") + 1
        yield Command(page, line, " ".join(match[1].split()))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])
