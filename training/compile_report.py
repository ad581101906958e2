"""What the compiler made of a step: its memory, its work and its collectives, per device."""

from __future__ import annotations

from typing import Any

from parallelism.hlo import COLLECTIVES, program_work
from training.compile import Compiled
from training.sheet import Sheet

_MEMORY = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "outputs that reuse arguments": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "program": "generated_code_size_in_bytes",
}


def compile_report(compiled: Compiled) -> str:
    """Markdown tables of an executable's memory, FLOPs and collectives, loops counted as they run.

    A backend that does not tell something leaves its rows out.
    """
    sheets = [memory_sheet(compiled.call), *work_sheets(compiled.call)]
    parts = [f"compiled in {compiled.seconds:.1f} s; every number is per device"]
    parts += [sheet.markdown() for sheet in sheets if sheet.rows]
    return "\n\n".join(parts)


def memory_sheet(executable: Any) -> Sheet:
    """What the program holds in memory, and the most that is held at once, if it is known."""
    known = _memory(executable)
    peak = getattr(executable.memory_analysis(), "peak_memory_in_bytes", 0)
    known |= {"most at once": peak} if peak else {}
    rows = [(name, f"{size:,}", f"{size / 2**30:.3f}") for name, size in known.items()]
    return Sheet("Memory", ("memory", "bytes", "GiB"), rows, numeric=("bytes", "GiB"))


def bytes_held(executable: Any) -> int:
    """Bytes that a device needs while the program runs: all of its memory, what is reused once."""
    known = _memory(executable)
    return sum(known.values()) - 2 * known.get("outputs that reuse arguments", 0)


def work_sheets(executable: Any) -> list[Sheet]:
    """FLOPs and collectives; loops of unknown length count once."""
    work = program_work(executable.as_text(), unknown_trips=1, read_conditions=True)
    costs = executable.cost_analysis() or {}
    flops = [
        (
            "FLOPs by the compiler's own count, each loop's body once",
            f"{costs.get('flops', 0):.4g}",
        ),
        ("bytes accessed, by the same count", f"{costs.get('bytes accessed', 0):.4g}"),
    ]
    if work.dot_flops:  # a TPU's compiler turns matrix products into convolutions
        name = "FLOPs of matrix products, loops counted as they run"
        flops.insert(0, (name, f"{work.dot_flops:.4g}"))
    collectives = [
        (kind, f"{work.collectives[kind]:,}", f"{work.collective_bytes[kind]:,}")
        for kind in COLLECTIVES
    ]
    return [
        Sheet("Work", ("work", "a step"), flops, numeric=("a step",)),
        Sheet(
            "Collectives",
            ("collective", "a step", "bytes of results"),
            collectives,
            numeric=("a step", "bytes of results"),
        ),
    ]


def _memory(executable: Any) -> dict[str, int]:
    stats = executable.memory_analysis()
    sizes = {name: getattr(stats, field, None) for name, field in _MEMORY.items()}
    return {name: size for name, size in sizes.items() if size is not None}
