"""Runs in processes of their own that are ended from outside, and then resumed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.small import COMPILE_CACHE, SMALL
from training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
LONGER = {
    "model.num_layers": "1", "train.steps": "60", "checkpoint.every": "7",
    "train.eval_every": "20", "data.eval_rows": "8",
}  # fmt: skip


def _start(run_dir: Path) -> subprocess.Popen[str]:
    keys = {**dict(word.split("=", 1) for word in SMALL), **LONGER, "run.dir": str(run_dir)}
    return _train(*(f"{key}={value}" for key, value in keys.items()))


def _train(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "train.py", *words],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end_at(
    process: subprocess.Popen[str], step: int, number: signal.Signals
) -> tuple[int, str, str]:
    """Sends a signal when the line of `step` is printed; returns exit code, stdout and stderr."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            process.send_signal(number)
            break
    out, error = process.communicate(timeout=120)
    return process.returncode, out, error


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
    code, _, _ = _end_at(_start(tmp_path), step, signal.SIGKILL)
    assert code == -signal.SIGKILL
    resumed = _start(tmp_path)
    _, error = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, error
    assert _values(tmp_path) == undisturbed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_step_and_says_the_command_that_goes_on_from_it(
    undisturbed: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    returned, said, error = _end_at(_start(tmp_path), 10, number)
    assert returned == code, error
    (command,) = re.findall("^to go on: (.*)", said, re.MULTILINE)
    last = max(read_metrics(tmp_path))
    assert (tmp_path / "checkpoints" / str(last)).is_dir()
    python, script, *words = shlex.split(command)
    assert (python, script) == ("python", "train.py")
    resumed = _train(*words, f"compile_cache={COMPILE_CACHE.name}")
    out, error = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, error
    assert f"restore: step {last}" in out
    assert _values(tmp_path) == undisturbed
