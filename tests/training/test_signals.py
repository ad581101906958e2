"""Signals: a flag between steps, a way out of a compilation, one stop step for all processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from training.checkpoint import Checkpoints
from training.metrics import read_metrics
from training.signals import StopRequested, StopSignal, in_background

WORKER = Path(__file__).with_name("process_worker.py")


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_a_signal_is_a_flag_and_an_exit_code(number: signal.Signals, exit_code: int) -> None:
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.agreed()
        assert stop.exit_code == 0
        signal.raise_signal(number)
        assert stop.requested
        assert stop.agreed()
        assert stop.exit_code == exit_code
        assert stop.name == number.name
    assert signal.getsignal(number) is before


def test_a_second_interrupt_is_one_and_a_second_sigterm_is_patient() -> None:
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.exit_code == 143
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_another_library_may_take_the_signals_and_we_take_them_back() -> None:
    """As jax.distributed.initialize does in the middle of a start."""
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_background_work_hands_over_its_result_or_its_error() -> None:
    with StopSignal() as stop:
        assert stop.wait(in_background(lambda: 42)) == 42
        with pytest.raises(ZeroDivisionError):
            stop.wait(in_background(lambda: 1 // 0))


def test_a_signal_ends_the_wait_for_background_work() -> None:
    never = threading.Event()

    def compile_for_ever() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        never.wait()

    with StopSignal() as stop, pytest.raises(StopRequested) as stopped:
        stop.wait(in_background(compile_for_ever))
    never.set()
    assert stopped.value.code == 143


def test_outside_the_main_thread_signals_keep_their_meaning() -> None:
    def enter() -> object:
        with StopSignal() as stop:
            return stop.requested, signal.getsignal(signal.SIGTERM)

    assert in_background(enter).result() == (False, signal.getsignal(signal.SIGTERM))


COMPILES = """
import os, signal, threading
import jax, jax.numpy as jnp
from training.signals import StopRequested, StopSignal, in_background, leave

def compile():
    def deep(x):
        for _ in range(3000):
            x = jnp.sin(x @ x)
        return x
    lowered = jax.jit(deep).lower(jnp.ones((64, 64)))
    os.kill(os.getpid(), signal.SIGTERM)
    lowered.compile()

try:
    with StopSignal() as stop:
        stop.wait(in_background(compile))
except StopRequested as stopped:
    leave(stopped.code)
"""


def test_a_signal_while_compiling_ends_the_process_at_once_and_cleanly() -> None:
    """Python's own ending would abort (134) because of the thread inside XLA."""
    result = subprocess.run([sys.executable, "-c", COMPILES], check=False, capture_output=True)
    assert result.returncode == 143
    assert result.stderr == b"SIGTERM: stopping after the steps already begun\n"


def start(run_dir: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKER), str(run_dir), *map(str, arguments)]
    root = str(WORKER.parents[2])
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )


def await_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith(f"step {step}/"):
            return
    raise AssertionError(process.communicate())


def saved_vector(run_dir: Path, num_devices: int) -> tuple[int, list[float]]:
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    wanted = {"x": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)}
    restored = Checkpoints(run_dir / "checkpoints").restore_latest(wanted)
    assert restored is not None
    return restored.step, np.asarray(restored.state["x"]).tolist()


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_a_stopped_run_has_saved_and_logged_its_last_step(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    with start(tmp_path, "none", 0, 0, 10**6) as process:
        await_step(process, 7)
        process.send_signal(number)
        process.communicate()
    assert process.returncode == exit_code
    step, values = saved_vector(tmp_path, 4)
    assert step >= 7
    assert values == [float(step)] * 8
    logged = read_metrics(tmp_path)
    assert list(logged) == list(range(1, step + 1))
    assert logged[step]["loss"] == float(step)


def test_two_processes_stop_and_save_at_the_same_step(tmp_path: Path) -> None:
    """SIGTERM reaches process 1 alone. One process with four devices goes on from there."""
    coordinator = f"localhost:{free_port()}"
    with (
        start(tmp_path, coordinator, 2, 0, 10**6) as first,
        start(tmp_path, coordinator, 2, 1, 10**6) as second,
    ):
        await_step(first, 6)
        second.send_signal(signal.SIGTERM)
        _, first_err = first.communicate()
        second_out, second_err = second.communicate()
    assert (first.returncode, second.returncode) == (143, 143)
    step, values = saved_vector(tmp_path, 4)
    assert values == [float(step)] * 8
    assert f"process 0 ends at step {step} with 143" in first_err
    assert f"process 1 ends at step {step} with 143" in second_err
    assert "step" not in second_out
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, step + 1))
    assert len(list(tmp_path.glob("events.*"))) == 1


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_fails_takes_the_others_with_it(tmp_path: Path, failing: int) -> None:
    """JAX's shutdown barrier alone would keep both for five minutes."""
    coordinator = f"localhost:{free_port()}"
    processes = [
        start(tmp_path, coordinator, 2, i, 10**6, 5 if i == failing else -1) for i in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert all(process.returncode != 0 for process in processes)
    assert processes[failing].returncode == 1
    assert "ArithmeticError: no more" in errors[failing]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
