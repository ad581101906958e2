"""Several processes are one run: same numbers as one process, one set of files, one way to stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.small import SMALL
from training.metrics import read_metrics

ROOT = Path(__file__).parents[2]


def _start(
    run_dir: Path, devices: int, process: int | None = None, port: int = 0
) -> subprocess.Popen:
    keys = dict(word.split("=", 1) for word in SMALL)
    keys |= {"train.steps": "200", "schedule.total_steps": "200", "checkpoint.every": "100"}
    keys |= {"mesh.context": "2", "mesh.simulate": str(devices), "run.dir": str(run_dir)}
    keys |= {"model.num_layers": "1", "train.eval_every": "0", "data.eval_rows": "8"}
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if process is not None:
        environment |= {
            "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(process),
        }
    return subprocess.Popen(
        [sys.executable, "train.py", *(f"{key}={value}" for key, value in keys.items())],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _pair(run_dir: Path) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [_start(run_dir, 2, process, port) for process in range(2)]


def _wait_for_step(process: subprocess.Popen, step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            return


def test_two_processes_stop_together_and_one_goes_on_as_if_alone(tmp_path: Path) -> None:
    first, second = _pair(tmp_path / "pair")
    _wait_for_step(first, 5)
    second.send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [143, 143], outputs
    assert "step " not in outputs[1]
    stopped = max(read_metrics(tmp_path / "pair"))
    assert (tmp_path / "pair" / "checkpoints" / str(stopped)).is_dir()

    alone = _start(tmp_path / "alone", 4)
    again = _start(tmp_path / "pair", 4)
    for process in (alone, again):
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
    expected, got = (read_metrics(tmp_path / name) for name in ("alone", "pair"))
    assert list(got) == list(expected)
    for step, fields in expected.items():
        assert got[step]["loss"] == pytest.approx(fields["loss"], rel=1e-5)
        assert got[step]["tokens"] == fields["tokens"]


def test_when_one_process_dies_the_other_does_not_hang(tmp_path: Path) -> None:
    first, second = _pair(tmp_path)
    _wait_for_step(first, 3)
    second.kill()
    second.communicate()
    output, _ = first.communicate(timeout=100)
    assert first.returncode != 0, output
