"""What people see: TensorBoard on two finished runs, one of them resumed, in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from tests.browser.board import Board, open_board
from tests.training.small import small_config
from training.modes import run

RUN = (
    "train.steps=4", "schedule.total_steps=4", "checkpoint.every=2", "mesh.context=2",
    "mesh.data=4", "data.pack=true", "data.eval_rows=8",
)  # fmt: skip


@pytest.fixture(scope="module")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runs are one program; without this each compiles it."""
    yield tmp_path_factory.mktemp("cache")
    jax.config.update("jax_compilation_cache_dir", None)
    reset_cache()


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory, compile_cache: Path) -> Iterator[Board]:
    """Runs `resumed` (learning rate 0.001, stopped at step 2) and `straight` (0.003)."""
    runs = tmp_path_factory.mktemp("runs")
    shared = (*RUN, f"compile_cache={compile_cache}")
    slow = (f"run.dir={runs / 'resumed'}", "optimizer.lr=1e-3")
    assert run(small_config(*shared[1:], "train.steps=2", *slow)) == 0
    assert run(small_config(*shared, *slow)) == 0
    assert run(small_config(*shared, f"run.dir={runs / 'straight'}", "optimizer.lr=3e-3")) == 0
    with open_board(Path(runs)) as board:
        yield board


def test_scalars_show_both_runs(board: Board) -> None:
    board.open("scalars")
    lines = board.text("learning/loss", "learning/grad_norm", "straight").splitlines()
    assert {"resumed", "straight"} <= set(lines)
    assert lines.count("learning/loss") == 1, "one chart for both runs"
    assert board.axis_labels(20) >= 20, "the charts are drawn"


def test_hparams_compare_the_runs_with_their_metrics(board: Board) -> None:
    board.open("hparams")
    lines = board.text("Trial ID", "optimizer.lr", "straight", "0.0030000").splitlines()
    assert lines.count("resumed") == 1, "a resumed run is one trial"
    assert lines.count("straight") == 1
    assert "0.0010000" in lines
    assert "eval/avg_loss" in lines
    # what differs comes first among the columns
    assert lines.index("optimizer.lr") < lines.index("attention.block_size")


def test_images_show_the_balance_and_the_mesh(board: Board) -> None:
    board.open("images")
    board.text("attended_pairs", "mesh")
    assert len(board.image_widths(4)) == 4, "two pictures a run"


def test_texts_show_config_plan_and_compile_report(board: Board) -> None:
    board.open("text")
    text = board.text("compile/text_summary", "all-gather", "temporaries")
    assert "config" in text and "plan" in text


def test_custom_scalars_are_grouped(board: Board) -> None:
    board.open("custom_scalars")
    board.text("loss", "speed", "time split", "memory")
