"""What one real run puts on the board, read back by TensorBoard's own reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from configs import Config
from data import open_data
from tests.training.small import small_config
from training.metric_table import METRICS
from training.modes import run

BOARD = (
    "train.steps=6", "train.eval_every=3", "checkpoint.every=3", "mesh.context=2", "mesh.data=4",
    "context_parallel.layout=contiguous", "data.pack=true",
)  # fmt: skip
# The CPU reports no memory and has no known peak; a new run restores nothing.
ELSEWHERE = {"mfu", "mfu_full_square", "bytes_in_use", "peak_bytes_in_use", "restore_seconds"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run of six steps that has ended."""
    config = small_config(f"run.dir={tmp_path_factory.mktemp('board')}", *BOARD)
    assert run(config) == 0
    return config


@pytest.fixture(scope="module")
def board(config: Config) -> Any:
    """TensorBoard's reader of the run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(config.run.dir)
    accumulator.Reload()
    return accumulator


def values(board: Any, tag: str) -> dict[int, float]:
    return {point.step: point.value for point in board.Scalars(tag)}


def test_every_scalar_of_the_table_is_written_when_the_table_says(board: Any) -> None:
    expected = {metric.tag for name, metric in METRICS.items() if name not in ELSEWHERE}
    assert set(board.Tags()["scalars"]) == expected
    steps = {
        "each logged step": [1, 2, 3, 4, 5, 6],
        "each save": [3, 6],
        "each evaluation": [3, 6],
        "once a process": [1],
    }
    for name, metric in METRICS.items():
        if name not in ELSEWHERE:
            assert list(values(board, metric.tag)) == steps[metric.when], metric.tag


def test_a_contiguous_layout_shows_its_imbalance(board: Any) -> None:
    # 48 tokens, two ranks: 24 * 25 / 2 = 300 pairs and 48 * 49 / 2 - 300 = 876; the mean is 588
    assert values(board, "context_parallel/balance")[1] == pytest.approx(876 / 588)


def test_padding_and_epoch_are_those_of_the_data(config: Config, board: Any) -> None:
    data = open_data(config.data, "train", config.model.vocab_size)
    padding = [np.mean(data.batch(step)["segment_ids"] == 0) for step in range(6)]
    assert list(values(board, "data/padding_fraction").values()) == pytest.approx(padding)
    rows = [8 * step / data.num_rows for step in range(1, 7)]
    assert list(values(board, "data/epoch").values()) == pytest.approx(rows)


def test_the_parts_of_a_step_add_up_to_it(board: Any) -> None:
    parts = ("data_wait", "device", "logging")
    for step, seconds in values(board, "perf/step_time_seconds").items():
        spent = sum(values(board, f"perf/{part}_seconds")[step] for part in parts)
        assert 0 <= spent <= seconds * (1 + 1e-6)
