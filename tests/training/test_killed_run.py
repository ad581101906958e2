"""Runs in processes of their own that are ended from outside, and then resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.small import SMALL
from training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
LONGER = {
    "model.num_layers": "1", "train.steps": "60", "checkpoint.every": "7",
    "train.eval_every": "20", "data.eval_rows": "8",
}  # fmt: skip


def _start(run_dir: Path) -> subprocess.Popen[str]:
    keys = {**dict(word.split("=", 1) for word in SMALL), **LONGER, "run.dir": str(run_dir)}
    return subprocess.Popen(
        [sys.executable, "train.py", *(f"{key}={value}" for key, value in keys.items())],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end_at(process: subprocess.Popen[str], step: int, number: signal.Signals) -> tuple[int, str]:
    """Sends a signal when the line of `step` is printed; returns exit code and stderr."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            process.send_signal(number)
            break
    _, error = process.communicate(timeout=120)
    return process.returncode, error


def _values(run_dir: Path) -> str:
    """metrics.jsonl by step without times, as text that also compares NaN."""
    lines = read_metrics(run_dir)
    return json.dumps(
        {s: {n: v for n, v in f.items() if not re.search("second", n)} for s, f in lines.items()}
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    run_dir = tmp_path_factory.mktemp("undisturbed")
    process = _start(run_dir)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return _values(run_dir)


@pytest.mark.parametrize("step", [3, 24])
def test_a_run_killed_at_any_step_ends_with_the_same_numbers(
    undisturbed: str, tmp_path: Path, step: int
) -> None:
    code, _ = _end_at(_start(tmp_path), step, signal.SIGKILL)
    assert code == -signal.SIGKILL
    resumed = _start(tmp_path)
    _, error = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, error
    assert _values(tmp_path) == undisturbed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_step_and_the_run_goes_on_from_it(
    undisturbed: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    returned, error = _end_at(_start(tmp_path), 10, number)
    assert returned == code, error
    last = max(read_metrics(tmp_path))
    assert (tmp_path / "checkpoints" / str(last)).is_dir()
    resumed = _start(tmp_path)
    out, error = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, error
    assert f"restore: step {last}" in out
    assert _values(tmp_path) == undisturbed
