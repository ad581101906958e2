"""The terminal and train.log: the same story, each in its own form, and no handler left behind."""

from __future__ import annotations

import logging
import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from training.console import Progress, announce, log_to
from training.live import sparkline

VALUES = {
    "loss": 3.20123,
    "grad_norm": 0.98,
    "learning_rate": 3e-4,
    "tokens_per_second": 12345.6,
    "step_time_seconds": 0.1,
    "data_wait_seconds": None,
}
LINE = "step 2/10 loss=3.2012 grad_norm=0.980 lr=3.000e-04 tokens/s=12346 step_s=0.100 eta="


def read_log(run_dir: Path) -> str:
    return (run_dir / "train.log").read_text(encoding="utf-8")


def test_piped_output_is_one_line_a_step_and_train_log_has_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_to(tmp_path), Progress(10) as progress:
        announce("mesh", "data=1 fsdp=8")
        progress.step(2, VALUES)
        progress.evaluated(2, {"eval_loss": 1.0, "eval_tokens": 64.0})
        logging.getLogger("some.library").warning("careful: %d", 7)
        logging.getLogger("some.library").info("chatter")
    out, err = capsys.readouterr()
    mesh, step, evaluation = out.splitlines()
    assert mesh == "mesh: data=1 fsdp=8"
    assert step.startswith(LINE)
    assert re.fullmatch(r"\d+:\d\d:\d\d", step.removeprefix(LINE))
    assert evaluation == "eval 2/10 eval_loss=1.0000 eval_tokens=64"
    assert err == "warning: careful: 7\n"
    logged = read_log(tmp_path)
    assert all(f"INFO {line}\n" in logged for line in out.splitlines())
    assert "WARNING careful: 7" in logged
    assert "chatter" not in logged


def test_an_error_leaves_its_traceback_in_train_log_and_no_handler(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    with pytest.raises(ZeroDivisionError), log_to(tmp_path):
        print(1 / 0)
    assert "Traceback" in read_log(tmp_path)
    assert "ZeroDivisionError" in read_log(tmp_path)
    assert logging.getLogger().handlers == before
    with log_to(tmp_path / "next"):
        announce("second", "job")
    assert "second" not in read_log(tmp_path)


def test_a_refusal_is_logged_without_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="too long"), log_to(tmp_path, refusals=(ValueError,)):
        raise ValueError("too long")
    assert "ERROR refused: too long" in read_log(tmp_path)
    assert "Traceback" not in read_log(tmp_path)
    assert capsys.readouterr().out == ""


def test_other_processes_say_nothing_but_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_to(tmp_path, primary=False, process=3), Progress(10, primary=False) as progress:
        announce("mesh", "data=1")
        progress.step(2, VALUES)
        logging.getLogger("some.library").warning("careful")
        logging.getLogger("foldtext").error("the disk is gone")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "[process 3] error: the disk is gone\n"
    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import sys
from training.console import Progress, announce, log_to
with log_to(sys.argv[1]):
    announce("mesh", "größe=1")
    with Progress(3, checkpoint_every=4) as progress:
        for step in (1, 2, 3):
            times = {"step_time_seconds": 0.5, "data_wait_seconds": 0.1, "bytes_in_use": 2**31}
            speed = {"tokens_per_second": 1000.0, "mfu": 0.4125, **times}
            progress.step(step, {"loss": 2.5 - step / 2, **speed})
        announce("done", "step 3")
"""


def test_a_terminal_shows_a_live_view_and_train_log_the_lines(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "110", "PYTHONIOENCODING": "utf-8"}
    subprocess.run(command, check=True, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = read_all(ours)
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "mesh: größe=1" in text
    assert "done: step 3" in text
    assert re.search(r"step 3/3 .*eta 0:00:00", text)
    assert "loss 1.0000 █▅▁" in text
    facts = "tokens/s 1,000 · step 0.500 s · data wait 20% · MFU 41.2% · memory 2.0 GiB"
    assert f"{facts} · checkpoint in 0" in text
    assert "step 1/3 loss" not in text
    assert re.findall(r"step \d/3 loss=\d\.\d{4}", read_log(tmp_path)) == [
        "step 1/3 loss=2.0000",
        "step 2/3 loss=1.5000",
        "step 3/3 loss=1.0000",
    ]


def read_all(terminal: int) -> str:
    """What a pseudo terminal still holds; Linux answers EIO at its end."""
    content = b""
    try:
        while chunk := os.read(terminal, 65536):
            content += chunk
    except OSError:
        pass
    return content.decode()


def test_a_sparkline_has_means_of_stretches_between_the_least_and_the_greatest() -> None:
    assert sparkline([3, 2, 1], 10) == "█▅▁"
    assert sparkline([8, 6, 4, 4, 1, -1], 3) == "█▅▁"
    assert sparkline([1, math.nan, 1], 10) == "▁?▁"
    assert sparkline([0, math.inf, 7], 10, "01234567") == "0?7"


def test_a_pipe_that_nobody_reads_ends_no_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, check=True, stdout=writing, stderr=-1, env=environment)
    os.close(writing)
    assert result.stderr == b""
    assert "done: step 3" in read_log(tmp_path)


def test_a_terminal_that_knows_no_umlauts_ends_no_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, check=True, capture_output=True, env=environment)
    assert rb"mesh: gr\xf6\xdfe=1" in result.stdout
    assert "mesh: größe=1" in read_log(tmp_path)
