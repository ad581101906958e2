"""mode=compile: the train step and the init, compiled for devices that need not be here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import jax
from rich.console import Console

from configs.topology import parse_topology
from parallelism import InitProgram
from training.compile import Compiled, compile_train_step
from training.compile_report import bytes_held, memory_sheet, work_sheets
from training.console import announce
from training.feed import Feed
from training.flops import step_flops
from training.plan import num_parameters
from training.setup import Setup
from training.sheet import Sheet
from training.signals import StopSignal, in_background
from training.start import init_plan

_MIN_WIDTH = 100  # tables are not cut off where output is piped


def compile_only(setup: Setup, run_dir: Path, stop: StopSignal) -> int:
    """Compiles what a training run would, and prints what the compiler says of it.

    Nothing is allocated or run, and `run_dir` is not made. Returns 0, also for what does not fit.
    """
    feed = Feed(setup.mesh, setup.rules, setup.layout)
    init = stop.wait(in_background(lambda: init_plan(setup).compile()))
    announce("compile", f"{init.num_programs} init programs in {init.compile_seconds:.1f} s")
    start = time.perf_counter()
    try:
        step = stop.wait(in_background(lambda: compile_train_step(setup, feed)))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        announce("compile", f"train step given up after {time.perf_counter() - start:.1f} s")
        announce("memory", f"does not fit: {_first_line(error)}")
        return 0
    announce("compile", f"train step in {step.seconds:.1f} s")
    _print(compiled_sheets(setup, step, init))
    announce("memory", verdict(bytes_held(step.call), device_memory(setup)))
    return 0


def compiled_sheets(setup: Setup, step: Compiled, init: InitProgram) -> Iterator[Sheet]:
    """Tables of the step's memory, work and collectives a device, and of the init's memory."""
    yield memory_sheet(step.call)
    work, collectives = work_sheets(step.call)
    config, parameters = setup.config, setup.specs.parameters
    flops = step_flops(parameters, config.model, config.data.batch, config.data.seq_len)
    counted = [
        ("parameters of the model", f"{num_parameters(parameters):,}"),
        ("model FLOPs (causal), by our own count", f"{flops / setup.mesh.size:.4g}"),
    ]
    yield Sheet("Work of one device", work.columns, [*counted, *work.rows], work.numeric)
    yield Sheet("Collectives of one device", collectives.columns, collectives.rows, work.numeric)
    held = max(bytes_held(program) for program in init.compiled)
    rows = [
        ("programs", f"{init.num_programs}"),
        ("most bytes that one needs", f"{held:,}"),
    ]
    yield Sheet("Init", ("init", "value"), rows, numeric=("value",))


def device_memory(setup: Setup) -> int | None:
    """Bytes of memory of one device of the topology; None for other devices."""
    name = setup.config.mesh.topology
    return None if name is None else parse_topology(name).hbm_bytes


def verdict(held: int, available: int | None) -> str:
    """`fits: 23.4 of 95.0 GiB, 24.6 %`; without `available`, the need alone."""
    need = f"{held / 2**30:.1f}"
    if available is None:
        return f"{need} GiB a device"
    word = "fits" if held <= available else "does not fit"
    return f"{word}: {need} of {available / 2**30:.1f} GiB a device, {held / available:.1%}"


def _print(sheets: Iterator[Sheet]) -> None:
    console = Console()
    console.width = max(console.width, _MIN_WIDTH)
    for sheet in sheets:
        if sheet.rows:
            console.print(sheet.for_terminal())


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
