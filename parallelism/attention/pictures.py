"""Pictures of plans in plain text, for docs/context_parallelism.md.

`python -m parallelism.attention.pictures` prints them.
"""

from __future__ import annotations

import itertools
import textwrap

from parallelism.attention.blocks import AttentionMask
from parallelism.attention.plan import plan_attention
from parallelism.layout import Layout


def chunk_pairs(cp: int, layouts: tuple[str, ...] = ("zigzag", "contiguous")) -> str:
    """Which rank computes which pair of a query chunk (down) and a key chunk (across)."""
    columns = [_column(Layout(name, cp)) for name in layouts]
    width = max(len(line) for column in columns for line in column)
    rows = itertools.zip_longest(*columns, fillvalue="")
    return "\n".join("    ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)


def _column(layout: Layout) -> list[str]:
    num_chunks = 2 * layout.cp
    chunks = layout.chunks(num_chunks)  # of one token each: a plan of any length looks the same
    plan = plan_attention(chunks, chunks, AttentionMask(), 1, "all_gather")
    ranks = [[" "] * num_chunks for _ in range(num_chunks)]
    counts = [0] * layout.cp
    for stage, rank in itertools.product(plan.stages, range(layout.cp)):
        for query, key in stage.pairs[rank, : stage.count[rank]]:
            ranks[plan.query.start[rank, query]][stage.key_start[rank, key]] = str(rank)
            counts[rank] += 1
    numbers = " ".join(map(str, range(num_chunks)))
    lines = [layout.name, f"keys     {numbers}"]
    lines += [f"query {number}  {' '.join(row)}" for number, row in enumerate(ranks)]
    return [*lines, f"pairs of a rank: {', '.join(map(str, counts))}"]


if __name__ == "__main__":
    print(textwrap.indent(chunk_pairs(4), "    "))  # as a page has it
