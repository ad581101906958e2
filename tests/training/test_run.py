"""Whole runs in this process: what is written, resumed, refused and said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from data import Dataset
from tests.training.small import small_config, small_setup
from training.checkpoint import Checkpoints
from training.metrics import read_metrics
from training.modes import run

TIMES = {"step_time_seconds", "tokens_per_second", "data_wait_seconds"}
RUN = ("train.steps=10", "schedule.total_steps=10", "train.eval_every=4", "checkpoint.every=4")


def train(run_dir: Path, *overrides: str) -> int:
    """Runs the small config in `run_dir`; later overrides win over RUN."""
    given = {word.split("=", 1)[0] for word in overrides}
    base = [word for word in RUN if word.split("=", 1)[0] not in given]
    return run(small_config(f"run.dir={run_dir}", *base, *overrides))


def history(run_dir: Path) -> dict[int, dict[str, float]]:
    """metrics.jsonl by step, without what depends on the clock."""
    return {
        step: {name: value for name, value in fields.items() if name not in TIMES}
        for step, fields in read_metrics(run_dir).items()
    }


def final_state(run_dir: Path) -> Any:
    """The newest checkpoint on one device, as host arrays."""
    with Checkpoints(run_dir / "checkpoints") as checkpoints:
        restored = checkpoints.restore_latest(small_setup(*RUN).abstract_state())
    assert restored is not None
    return jax.device_get(restored.state)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten steps that nothing disturbed."""
    run_dir = tmp_path_factory.mktemp("straight")
    assert train(run_dir) == 0
    return run_dir


def test_a_run_leaves_what_it_promises(straight: Path) -> None:
    lines = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 11))
    assert set(steps[0]) > TIMES
    evals = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in evals] == [4, 8, 10]
    assert steps[-1]["loss"] < steps[0]["loss"]
    with Checkpoints(straight / "checkpoints") as checkpoints:
        assert checkpoints.steps() == [4, 8, 10]
    assert (straight / "config.yaml").exists()
    assert "step 10/10" in (straight / "train.log").read_text()


def test_a_run_in_three_parts_equals_an_undisturbed_one_bit_for_bit(
    straight: Path, tmp_path: Path
) -> None:
    for steps in (4, 5, 10):
        assert train(tmp_path, f"train.steps={steps}") == 0
    in_parts = history(tmp_path)
    for step, fields in history(straight).items():
        assert fields.items() <= in_parts[step].items()
    jax.tree.map(np.testing.assert_array_equal, final_state(straight), final_state(tmp_path))


def test_a_run_goes_on_over_another_mesh(straight: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "train.steps=4") == 0
    assert train(tmp_path, "mesh.context=4", "mesh.fsdp=2") == 0
    expected = {step: fields["loss"] for step, fields in history(straight).items()}
    losses = {step: fields["loss"] for step, fields in history(tmp_path).items()}
    assert losses == pytest.approx(expected, rel=1e-5)


def test_a_finished_run_is_left_as_it_is(straight: Path, capsys: pytest.CaptureFixture) -> None:
    before = (straight / "metrics.jsonl").read_bytes()
    assert train(straight) == 0
    assert "trained already" in capsys.readouterr().out
    assert (straight / "metrics.jsonl").read_bytes() == before


def test_a_loss_that_is_not_finite_ends_the_run_and_no_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Dataset.batch

    def poisoned(self: Dataset, step: int, rows: Any = None) -> Any:
        made = batch(self, step, rows)
        weights = made["weights"].copy()
        weights[0, 0] = 1e38  # times a loss of about 4: past the largest float32
        return {**made, "weights": weights} if step == 4 else made

    monkeypatch.setattr(Dataset, "batch", poisoned)
    assert train(tmp_path, "checkpoint.every=2", "checkpoint.keep=1") == 1
    error = capsys.readouterr().err
    steps = history(tmp_path)
    assert "step 5" in error and "not finite" in error
    assert max(steps) == 5 and not math.isfinite(steps[5]["loss"])
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.steps() == [4]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(final_state(tmp_path)))


def test_parameters_that_overflow_end_the_run_unsaved(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert train(tmp_path, "optimizer.lr=1e30", "schedule.warmup_steps=0") == 1
    assert "param_norm=inf" in capsys.readouterr().err
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_epochs_end_a_run_early(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("fold the text " * 100)
    code = train(
        tmp_path / "run", "data=text", f"data.path={text}", "data.epochs=1",
        "model.vocab_size=264", "data.seq_len=48", "data.batch=8",
    )  # fmt: skip
    assert code == 0
    assert 1 <= max(history(tmp_path / "run")) < 10


def test_a_kernel_of_other_devices_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert train(tmp_path, "attention.kernel=splash", "data.seq_len=1024") == 2
    assert "attention.kernel=splash runs on tpu" in capsys.readouterr().err


def test_a_missing_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n  \n")
    code = train(tmp_path / "run", "data=text", f"data.path={empty}", "model.vocab_size=264")
    assert code == 2
    assert "0 tokens" in capsys.readouterr().err


def test_eval_mode_repeats_the_runs_last_eval(
    straight: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(small_config(f"run.dir={straight}", "mode=eval", *RUN)) == 0
    said = capsys.readouterr().out
    loss = float(said.split("eval_loss=")[1].split()[0])
    assert loss == pytest.approx(history(straight)[10]["eval_loss"], rel=1e-6)
