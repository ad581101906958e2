"""A table of words and numbers, shown in a terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """Rows of text under a title; `numeric` columns are aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[str] = ()

    def for_terminal(self) -> Table:
        """The sheet as Rich prints it."""
        table = Table(title=self.title, box=box.SIMPLE)
        for column in self.columns:
            table.add_column(
                column,
                justify="right" if column in self.numeric else "left",
                no_wrap=column in ("parameter", "shape"),
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self, max_rows: int = 200) -> str:
        """The sheet as Markdown; what is past `max_rows` is counted, not shown."""
        rule = ["---:" if column in self.numeric else "---" for column in self.columns]
        lines = [_line(self.columns), _line(rule), *map(_line, self.rows[:max_rows])]
        left_out = len(self.rows) - max_rows
        more = f"\n... and {left_out:,} more\n" if left_out > 0 else ""
        return f"### {self.title}\n\n" + "\n".join(lines) + "\n" + more


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
