"""Two processes never write one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.run_lock import RunInUseError, sole_writer

HOLD = """
import sys
from training.run_lock import sole_writer
with sole_writer(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_in_use_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(RunInUseError, match=rf"in use by process {holder.pid} on"),
            sole_writer(tmp_path),
        ):
            pass
        holder.kill()
        holder.wait()
    with sole_writer(tmp_path):
        assert f"process {os.getpid()}" in (tmp_path / ".lock").read_text()


def test_a_run_can_be_held_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sole_writer(tmp_path):
        print(1 / 0)
    with sole_writer(tmp_path):
        pass
