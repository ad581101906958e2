"""The end of a sweep: a table in the terminal, SWEEP/sweep.csv and SWEEP/sweep.html."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweeps.findings import agreement, edge_warnings, scaling_law
from sweeps.page import page
from sweeps.results import Result, swept_keys

_NARROWEST = 120  # columns of a table that goes to a file

# Heading, name in sweep.csv, value, format for people.
COLUMNS: tuple[tuple[str, str, Callable[[Result], Any], str], ...] = (
    ("loss", "final_loss", lambda r: r.final_loss, ".4f"),
    ("best", "best_loss", lambda r: r.best_loss, ".4f"),
    ("eval loss", "eval_loss", lambda r: r.eval_loss, ".4f"),
    ("tokens/s", "tokens_per_second", lambda r: r.tokens_per_second, ",.0f"),
    ("compile s", "compile_seconds", lambda r: r.compile_seconds, ".1f"),
    ("min", "minutes", lambda r: r.minutes, ".1f"),
)


_DISPENSABLE = ("compile s", "min", "best", "directory", "tokens/s")  # on a narrow terminal


def report(sweep_dir: Path, results: Sequence[Result]) -> None:
    """Writes sweep.csv and sweep.html and prints the table, with what is worth a remark."""
    notes = edge_warnings(results)
    law, agreed = scaling_law(results), agreement(results)
    _write(sweep_dir / "sweep.csv", lambda path: write_csv(path, results))
    html = page(sweep_dir, results, rows(results), [*notes, *filter(None, [agreed])], law)
    _write(sweep_dir / "sweep.html", lambda path: path.write_text(html, encoding="utf-8"))
    _print_table(results, sweep_dir)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    if law:
        print(f"scaling law: {law}")
    if agreed:
        print(agreed)
    done = sum(result.exit_code == 0 for result in results)
    print(f"{done} of {len(results)} jobs are done, in {sweep_dir} (see sweep.html)", flush=True)


def rows(results: Sequence[Result]) -> list[list[str]]:
    """The table as text: a row of headings, then a row for each job."""
    keys = swept_keys(results)
    headings = ["job", *keys, "status", *(column[0] for column in COLUMNS), "directory"]
    table = [headings]
    for result in results:
        swept = [_short(result.values.get(key, "")) for key in keys]
        numbers = [_text(value(result), style) for _, _, value, style in COLUMNS]
        table.append([str(result.number), *swept, result.status, *numbers, result.folder.name])
    return table


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Every job with full precision, one column for each key that its overrides set."""
    keys = list(dict.fromkeys(key for result in results for key in result.values))
    names = [column[1] for column in COLUMNS]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        extra = ["parameters", "tokens", "directory"]
        writer.writerow(["job", *keys, "status", "exit_code", *names, *extra])
        for result in results:
            values = [result.values.get(key, "") for key in keys]
            numbers = [value(result) for _, _, value, _ in COLUMNS]
            ends = [result.parameters, result.tokens, result.folder]
            writer.writerow(
                [result.number, *values, result.status, result.exit_code, *numbers, *ends]
            )


def _print_table(results: Sequence[Result], sweep_dir: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _NARROWEST)
    keys = swept_keys(results)
    headings, *lines = fitted(rows(results), keys, console.width)
    table = Table(title=None, pad_edge=False)
    numeric = {"job", *(column[0] for column in COLUMNS)}
    texts = {key for name in keys for key in (name, _last(name))} - numeric
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in numeric else "left",
            overflow="fold",
            no_wrap=heading not in texts,
        )
    best = min(results, key=lambda result: result.goal)
    for line, result in zip(lines, results, strict=True):
        bad = result.exit_code not in (0, None)
        is_best = result is best and result.exit_code == 0 and len(results) > 1
        table.add_row(*line, style="red" if bad else "bold" if is_best else None)
    console.print(table)


def fitted(table: list[list[str]], keys: Sequence[str], width: int) -> list[list[str]]:
    """The table, narrowed until it fits into `width` characters, or no further.

    First the keys lose their groups, `optimizer.lr` -> `lr`, where that leaves them apart; then
    the columns go that say least. sweep.csv has all of them.
    """
    if _width(table) > width:
        short = {key: _last(key) for key in keys}
        if len({*short.values()} | {*table[0]}) == len({*table[0]}) + len(short):
            table = [[short.get(heading, heading) for heading in table[0]], *table[1:]]
    for heading in _DISPENSABLE:
        if _width(table) <= width:
            break
        place = table[0].index(heading)
        table = [[*line[:place], *line[place + 1 :]] for line in table]
    return table


def _width(table: list[list[str]]) -> int:
    """Characters of a row: a space on both sides of each cell but at the edges, and the lines."""
    cells = sum(max(map(len, column)) for column in zip(*table, strict=True))
    return cells + 3 * len(table[0]) - 1


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """A report that cannot be written is a pity, not a failure of the jobs."""
    new = path.with_name(f".{path.name}")
    try:
        write(new)
        new.replace(path)
    except OSError as error:
        print(f"warning: {path} is not written: {error}", file=sys.stderr)


def _text(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
