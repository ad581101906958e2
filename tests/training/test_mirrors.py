"""log.wandb and log.mlflow: each step once, one run however often resumed, and never in the way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from configs import Config, ConfigError, load
from tests.training.small import small_config
from training.metrics import MetricsLog, read_metrics
from training.mirrors import Mirrors

SERVICES = Path(__file__).parent / "services"
NAMES = ("wandb", "mlflow", "mlflow.entities")


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The stand-ins for wandb and mlflow, fresh."""
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(SERVICES)
    import mlflow
    import wandb

    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return wandb, mlflow


def mirrored(run_dir: Path, *overrides: str) -> Config:
    return small_config(f"run.dir={run_dir}", "log.wandb=true", "log.mlflow=true", *overrides)


def train(config: Config, steps: range, wrong: Callable[[], None] | None = None) -> None:
    """A process that does these steps, evaluates every fourth one and finishes at step 10."""
    run_dir = Path(config.run.dir)
    with (
        Mirrors(config, run_dir, read_metrics(run_dir)) as mirrors,
        MetricsLog(run_dir, steps[0] - 1, mirrors=mirrors) as metrics,
    ):
        for step in steps:
            metrics.write(step, {"loss": float(step), "param_norm": 1.0})
            if step % 4 == 0:
                metrics.write(step, {"eval_loss": step + 0.5})
            if step == steps[-1] and wrong:
                wrong()
        metrics.once({"compile_eval_step_seconds": 2.0})
        if steps[-1] == 10:
            metrics.finish()


def crash() -> None:
    raise ZeroDivisionError


def test_both_get_every_step_once_under_one_id_whatever_happened_before(
    services: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    wandb, mlflow = services
    with pytest.raises(ZeroDivisionError):
        train(mirrored(tmp_path), range(1, 9), crash)
    train(mirrored(tmp_path, "optimizer.lr=0.5"), range(7, 11))  # from the checkpoint of step 6

    (run,) = wandb.runs.values()
    losses = [(step, data["learning/loss"]) for step, data in run.points if "learning/loss" in data]
    assert losses == [(step, float(step)) for step in range(1, 11)]
    evals = [(step, data["eval/avg_loss"]) for step, data in run.points if "eval/avg_loss" in data]
    assert evals == [(4, 4.5), (8, 8.5)]
    assert run.exit_codes == [1, 0]
    assert run.config["optimizer.lr"] == 0.5

    (kept,) = mlflow.runs.values()
    for tag, expected in (("learning/loss", losses), ("eval/avg_loss", evals)):
        assert [(step, value) for step, key, value in kept.points if key == tag] == expected
    assert kept.statuses == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    assert kept.params["model.embed_dim"] == "48"


def test_an_evaluation_that_an_earlier_process_missed_is_given(
    services: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    wandb, _ = services
    train(mirrored(tmp_path), range(1, 8))
    train(mirrored(tmp_path), range(5, 9))
    (run,) = wandb.runs.values()
    assert [step for step, data in run.points if "eval/avg_loss" in data] == [4, 8]


def test_a_run_is_named_by_its_directory_in_the_project_that_is_asked_for(
    services: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    wandb, mlflow = services
    train(mirrored(tmp_path / "sweep" / "7", "log.project=mine"), range(1, 3))
    (run,), (kept,) = wandb.runs.values(), mlflow.runs.values()
    assert run.points[-1] == (2, {"perf/compile_seconds/eval_step": 2.0}), "late, but not lost"
    assert (run.given["project"], run.given["name"]) == ("mine", "sweep/7")
    assert (mlflow.experiments["mine"], kept.name) == (kept.experiment, "sweep/7")


def test_a_service_that_fails_costs_one_warning(
    services: tuple[ModuleType, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*args: object, **given: object) -> None:
        raise OSError("no route to host\nmore")

    monkeypatch.setattr(services[0], "init", broken)
    monkeypatch.setattr(services[1].MlflowClient, "log_batch", broken)
    train(mirrored(tmp_path), range(1, 11))
    assert list(read_metrics(tmp_path)) == list(range(1, 11))
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2
    for name, line in zip(("mlflow", "wandb"), said, strict=True):
        assert line.startswith(f"log.{name}: nothing more is mirrored, the run goes on")
        assert line.endswith("OSError: no route to host")


def test_a_service_that_hangs_holds_nothing_up(
    services: tuple[ModuleType, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(services[0], "init", lambda **given: answer.wait())
    monkeypatch.setattr("training.mirrors._PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("training.mirrors._MOST_WAITING", 5)
    config = small_config(f"run.dir={tmp_path}", "log.wandb=true")
    train(config, range(1, 11))
    answer.set()
    assert list(read_metrics(tmp_path)) == list(range(1, 11))
    (record,) = caplog.records
    assert "too slow" in record.getMessage()


def test_without_the_package_the_config_is_refused_and_the_extra_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as refused:
        load(["log.wandb=true", "log.mlflow=true"])
    first, second = refused.value.problems
    assert "log.wandb=true" in first and "pip install -e '.[wandb]'" in first
    assert "log.mlflow=true" in second and "pip install -e '.[mlflow]'" in second
    assert load([]).log.wandb is False and load([]).log.mlflow is False
