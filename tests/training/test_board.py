"""What one real run puts on the board, read back by TensorBoard's own reader."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from PIL import Image
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

from configs import Config
from data import open_data
from tests.training.small import small_config
from training.checkpoint import Checkpoints
from training.hparams import session_start
from training.metric_table import METRICS
from training.metrics import MetricsLog
from training.mirrors import Mirrors
from training.modes import run
from training.setup import open_setup

BOARD = (
    "train.steps=6", "train.eval_every=3", "checkpoint.every=3", "mesh.context=2", "mesh.data=4",
    "context_parallel.layout=contiguous", "data.pack=true",
    "profile.start=4", "profile.steps=1", "log.norms_every=3", "log.histograms_every=6",
)  # fmt: skip
# The CPU reports no memory and has no known peak; a new run restores nothing.
ELSEWHERE = {
    *("mfu", "mfu_full_square", "bytes_in_use", "peak_bytes_in_use", "restore_seconds"),
    "index_loss",  # of a trained indexer alone: test_step.py
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run of six steps that has ended."""
    config = small_config(f"run.dir={tmp_path_factory.mktemp('board')}", *BOARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.train.Mirrors", _Noted)
        assert run(config) == 0
    return config


class _Noted(Mirrors):
    """Has one mirror, which is this class."""

    points: ClassVar[list[tuple[int, Mapping[str, float]]]] = []
    finished_runs: ClassVar[list[bool]] = []

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.points.append((step, scalars))

    def __exit__(self, *error: Any) -> None:
        self.finished_runs.append(self.finished)


@pytest.fixture(scope="module")
def board(config: Config) -> Any:
    """TensorBoard's reader of the run."""
    return accumulate(config.run.dir)


def accumulate(directory: str | Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return accumulator


def text(board: Any, tag: str) -> str:
    (event,) = board.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def picture(board: Any, tag: str) -> np.ndarray:
    (event,) = board.Images(tag)
    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))


def hparams(board: Any) -> dict[str, Any]:
    content = board.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    info = metadata.parse_session_start_info_plugin_data(content)
    return {key: getattr(v, v.WhichOneof("kind")) for key, v in info.hparams.items()}


def values(board: Any, tag: str) -> dict[int, float]:
    return {point.step: point.value for point in board.Scalars(tag)}


def test_every_scalar_of_the_table_is_written_when_the_table_says(board: Any) -> None:
    expected = {metric.tag for name, metric in METRICS.items() if name not in ELSEWHERE}
    assert {tag for tag in board.Tags()["scalars"] if not tag.startswith("layers/")} == expected
    steps = {
        "each logged step": [1, 2, 3, 4, 5, 6],
        "each save": [3, 6],
        "each evaluation": [3, 6],
        "once a process": [1],
    }
    for name, metric in METRICS.items():
        if name not in ELSEWHERE:
            assert list(values(board, metric.tag)) == steps[metric.when], metric.tag


def test_mirrors_get_every_scalar_as_it_comes_and_learn_of_the_end(board: Any) -> None:
    given: dict[str, dict[int, float]] = {}
    for step, scalars in _Noted.points:
        for tag, value in scalars.items():
            assert given.setdefault(tag, {}).setdefault(step, value) == value
    assert given.keys() == set(board.Tags()["scalars"])
    for tag, points in given.items():
        assert values(board, tag) == pytest.approx(points, rel=1e-6), tag
    assert _Noted.finished_runs == [True]


def test_a_contiguous_layout_shows_its_imbalance(board: Any) -> None:
    # 48 tokens, two ranks: 24 * 25 / 2 = 300 pairs and 48 * 49 / 2 - 300 = 876; the mean is 588
    assert values(board, "context_parallel/balance")[1] == pytest.approx(876 / 588)


def test_padding_and_epoch_are_those_of_the_data(config: Config, board: Any) -> None:
    data = open_data(config.data, "train", config.model.vocab_size)
    padding = [np.mean(data.batch(step)["segment_ids"] == 0) for step in range(6)]
    assert list(values(board, "data/padding_fraction").values()) == pytest.approx(padding)
    rows = [8 * step / data.num_rows for step in range(1, 7)]
    assert list(values(board, "data/epoch").values()) == pytest.approx(rows)


def test_hyperparameters_stand_in_the_runs_own_file(config: Config, board: Any) -> None:
    (file,) = Path(config.run.dir).glob("**/events.out.tfevents.*")
    assert file.parent == Path(config.run.dir)
    given = hparams(board)
    assert given["optimizer.lr"] == config.optimizer.lr
    assert given["model.num_layers"] == 2.0
    assert given["data.pack"] is True
    assert given["context_parallel.layout"] == "contiguous"
    assert given["data.epochs"] == "null"
    assert not [key for key in given if key.split(".")[0] in ("run", "mode", "generate")]
    ended = board.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert metadata.parse_session_end_info_plugin_data(ended).status == 1  # SUCCESS


def test_any_config_value_is_a_hyperparameter_that_tensorboard_can_show(
    config: Config, tmp_path: Path
) -> None:
    odd = replace(
        config,
        optimizer=replace(config.optimizer, clip_norm=None, eps=math.inf),
        model=replace(config.model, window=[1, "a"]),
        seed={"nested": {"nan": math.nan}},
    )
    with MetricsLog(tmp_path) as metrics:
        metrics.summary(session_start(odd))
    given = hparams(accumulate(tmp_path))
    expected = {
        "optimizer.clip_norm": "null",
        "optimizer.eps": "inf",
        "model.window": "[1, 'a']",
        "seed.nested.nan": "nan",
    }
    assert expected.items() <= given.items()


def test_texts_hold_the_config_the_plan_and_what_was_compiled(board: Any) -> None:
    assert "\n  num_layers: 2\n" in text(board, "config")
    plan = text(board, "plan")
    assert "| attended pairs per context rank | 300 876 |" in plan
    assert "model tiny on 8 devices: data=4 fsdp=1 expert=1 context=2 tensor=1" in plan
    report = text(board, "compile")
    assert "### Memory" in report and "| temporaries |" in report
    assert "| all-gather | " in report and "| all-gather | 0 |" not in report
    assert "| all-to-all | 0 | 0 |" in report


def test_the_pairs_of_each_rank_are_bars_as_high_as_they_are(board: Any) -> None:
    chart = picture(board, "attended_pairs")
    blue = np.all(chart == (33, 113, 181), axis=-1)[70:].sum(axis=0)
    heights = sorted(set(blue.tolist()))
    assert heights[0] == 0 and len(heights) == 3
    assert heights[1] / heights[2] == pytest.approx(300 / 876, abs=0.01)
    # beside them zigzag, with which both ranks have the mean of 588
    orange = np.all(chart == (217, 95, 14), axis=-1)[70:].sum(axis=0)
    assert orange.max() / heights[2] == pytest.approx(588 / 876, abs=0.01)
    assert len(set(orange.tolist())) == 2


def test_a_mesh_is_drawn_with_a_cell_a_device_and_a_color_a_context_rank(board: Any) -> None:
    drawn = picture(board, "mesh")
    first, second = (np.all(drawn == c, axis=-1).sum() for c in ((33, 113, 181), (217, 95, 14)))
    assert first == pytest.approx(second, rel=0.1)
    assert first > 4 * 50 * 50


def test_charts_are_grouped_by_what_one_asks(board: Any) -> None:
    (event,) = board.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [c.title for c in layout.category] == ["loss", "speed", "time split", "memory"]
    assert list(layout.category[0].chart[0].multiline.tag) == ["^learning/loss$", "^eval/avg_loss$"]


def test_norms_of_layers_add_up_to_the_global_ones(board: Any) -> None:
    for kind in ("grad", "param"):
        tags = [tag for tag in board.Tags()["scalars"] if tag.startswith(f"layers/{kind}_norm/")]
        groups = {tag.removeprefix(f"layers/{kind}_norm/") for tag in tags}
        assert {"000", "001"} < groups and "002" not in groups
        overall = values(board, f"learning/{kind}_norm")
        for step in (3, 6):
            parts = [values(board, tag)[step] for tag in tags]
            assert math.hypot(*parts) == pytest.approx(overall[step], rel=1e-5)
        assert all(list(values(board, tag)) == [3, 6] for tag in tags)


def test_histograms_of_layers_count_every_parameter(config: Config, board: Any) -> None:
    with Checkpoints(Path(config.run.dir) / "checkpoints") as checkpoints:
        saved = checkpoints.restore_latest(open_setup(config, jax.devices()).abstract_state())
    assert saved is not None
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(saved.state.parameters)]
    tags = [tag for tag in board.Tags()["histograms"] if tag.startswith("layers/param/")]
    drawn = [board.Histograms(tag) for tag in tags]
    assert all([event.step for event in events] == [6] for events in drawn)
    shown = [events[0].histogram_value for events in drawn]
    assert sum(h.num for h in shown) == sum(leaf.size for leaf in leaves)
    small = sum(
        count
        for h in shown
        for limit, count in zip(h.bucket_limit, h.bucket, strict=True)
        if -(2.0**-6) < limit <= 2.0**-6
    )
    expected = sum(((leaf > -(2.0**-6)) & (leaf <= 2.0**-6)).sum() for leaf in leaves)
    assert small == expected


def test_a_profile_names_the_parts_of_a_step(config: Config) -> None:
    (trace,) = Path(config.run.dir).glob("plugins/profile/*/*.xplane.pb")
    recorded = trace.read_bytes()
    for scope in (b"attention", b"exchange", b"mlp", b"loss", b"optimizer"):
        assert b"jit(train_step)" in recorded and b"/" + scope + b"/" in recorded, scope


def test_the_parts_of_a_step_add_up_to_it(board: Any) -> None:
    parts = ("data_wait", "device", "logging")
    for step, seconds in values(board, "perf/step_time_seconds").items():
        spent = sum(values(board, f"perf/{part}_seconds")[step] for part in parts)
        assert 0 <= spent <= seconds * (1 + 1e-6)
