"""What people see: TensorBoard on a finished sweep, one of its jobs resumed, in Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.board import Board, open_board
from tests.training.small import SMALL

pytestmark = pytest.mark.slow  # three runs and a browser

ROOT = Path(__file__).parents[2]
# The cache in the working directory is shared: the jobs are one program.
SWEEP = (
    "mesh.simulate=8", "mesh.context=2", "mesh.data=4", "data.pack=true", "data.eval_rows=8",
    "train.steps=4", "train.eval_every=0", "schedule.total_steps=8", "checkpoint.every=4",
    "compile_cache=cache",
)  # fmt: skip


def _train(cwd: Path, *words: str) -> None:
    """Runs the command that a user types, or fails with what it says."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *words],
        cwd=cwd,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A sweep S of two learning rates; its first job has gone on to step 6."""
    home = tmp_path_factory.mktemp("home")
    given = {word.split("=")[0] for word in SWEEP}
    base = [word for word in SMALL if word.split("=")[0] not in given]
    _train(home, "--multirun", *base, *SWEEP, "optimizer.lr=1e-3,3e-3", "hydra.sweep.dir=runs/S")
    _train(home, "run.dir=runs/S/0", "train.steps=6", "compile_cache=cache")
    with open_board(home / "runs") as board:
        yield board


def test_scalars_show_both_jobs(board: Board) -> None:
    board.open("scalars")
    lines = board.text("learning/loss", "learning/grad_norm", "S/1").splitlines()
    assert {"S/0", "S/1"} <= set(lines)
    assert lines.count("learning/loss") == 1, "one chart for both jobs"
    assert board.axis_labels(20) >= 20, "the charts are drawn"


def test_hparams_compare_the_jobs_with_their_metrics(board: Board) -> None:
    board.open("hparams")
    lines = board.text("Trial ID", "optimizer.lr", "S/1", "0.0030000").splitlines()
    assert lines.count("S/0") == 1, "a resumed job is one trial"
    assert lines.count("S/1") == 1
    assert "0.0010000" in lines
    assert "eval/avg_loss" in lines
    # what differs comes first among the columns
    assert lines.index("optimizer.lr") < lines.index("attention.block_size")


def test_images_show_the_balance_and_the_mesh(board: Board) -> None:
    board.open("images")
    board.text("attended_pairs", "mesh")
    assert len(board.image_widths(4)) == 4, "two pictures a job"


def test_texts_show_config_plan_and_compile_report(board: Board) -> None:
    board.open("text")
    text = board.text("compile/text_summary", "all-gather", "temporaries")
    assert "config" in text and "plan" in text


def test_custom_scalars_are_grouped(board: Board) -> None:
    board.open("custom_scalars")
    board.text("loss", "speed", "time split", "memory")
