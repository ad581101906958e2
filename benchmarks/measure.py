"""What a benchmark reads off: a compiled program's own figures, and times taken in alternation."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

OPERATIONS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|gather|while"


def compiled_figures(compiled: jax.stages.Compiled) -> dict[str, Any]:
    """Per device: bytes accessed and temporary bytes by XLA's count, and how often what occurs."""
    cost: Any = compiled.cost_analysis()
    memory: Any = compiled.memory_analysis()
    found = re.findall(rf" ({OPERATIONS})(?:-start)?\(", compiled.as_text() or "")
    return {
        "bytes_accessed": int(cost["bytes accessed"]),
        "temporary_bytes": int(memory.temp_size_in_bytes),
        "operations": dict(sorted(Counter(found).items())),
    }


def median_seconds(
    runs: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median time of each run. They take turns, so that drift of the machine meets all.

    Wall time, or `time.process_time`: that of all cores, which other processes disturb less.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warm_up + rounds):
        for name, run in runs.items():
            start = clock()
            jax.block_until_ready(run())
            if turn >= warm_up:
                times[name].append(clock() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def environment() -> dict[str, Any]:
    """What the figures depend on: versions and processor."""
    return {
        "jax": jax.__version__,
        "libtpu": _installed("libtpu"),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Aligned columns; a missing value prints as a dash."""
    cells = [list(columns), *[[_cell(row.get(name)) for name in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return str(value)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` with the environment that it was measured in."""
    path.write_text(json.dumps({"environment": environment(), **content}, indent=1) + "\n")
