"""Sweeps of real processes, in which a few lines stand in for train.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from configs import Config
from configs.command_line import main
from sweeps import sweep

_TRAIN = """
import json, os, signal, sys
words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
words = {key: value.strip("'") for key, value in words.items()}
folder = words["run.dir"]
def log(**fields):
    with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
        file.write(json.dumps(fields) + "\\n")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`stand_in(code, *words)` sweeps; every job runs `code`, which knows `words` and `log`."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "stand_in.py"
    monkeypatch.setattr("sweeps.job.TRAIN", script)

    def run(code: str, *words: str) -> int:
        script.write_text(_TRAIN + code)
        return main(_not_here, sweep, ["--multirun", "hydra.sweep.dir=S", *words])

    return run


def _not_here(config: Config) -> int:
    raise AssertionError("the job ran in the process of the sweep")
