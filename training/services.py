"""Weights & Biases and MLflow as places that keep a run's scalars, through their own packages.

Servers, keys and modes are set up as the packages have it: WANDB_MODE, WANDB_ENTITY,
`wandb login`, MLFLOW_TRACKING_URI and so on.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from configs import Config
from training.console import announce
from training.hparams import hparams

Point = tuple[int, Mapping[str, float]]  # step, scalars by TensorBoard tag
_MLFLOW_PARAMS, _MLFLOW_METRICS = 100, 1000  # that MLflow takes in one request


class Service(Protocol):
    """One run in one service; `id` is its name there. Methods may take long and raise anything."""

    id: str

    def log(self, points: list[Point]) -> None:
        """Adds points, in the order in which the run made them."""

    def close(self, finished: bool) -> None:
        """Hands over what is left; the run came to its last step, or was stopped before."""


class _Wandb:
    def __init__(self, run: Any) -> None:
        self.id: str = run.id
        self._run = run
        self._step = 0

    def log(self, points: list[Point]) -> None:
        """What is measured late for the first step stands at the last: wandb never goes back."""
        for step, scalars in points:
            self._step = max(step, self._step)
            self._run.log(dict(scalars), step=self._step)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def open_wandb(config: Config, known: str | None) -> Service:
    """The run `known` in project log.project, or a new one; its files go to RUN/wandb."""
    import wandb

    with _nothing_to_answer():
        run = wandb.init(
            project=config.log.project,
            id=known or secrets.token_hex(4),
            name=_name(config),
            resume="allow",
            dir=config.run.dir,
            settings=wandb.Settings(silent=True, console="off"),
        )
    run.config.update(dict(hparams(config)), allow_val_change=True)
    announce("log.wandb", f"run {run.id} of project {config.log.project}")
    return _Wandb(run)


class _MLflow:
    def __init__(self, client: Any, run_id: str) -> None:
        self.id = run_id
        self._client = client

    def log(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(tag, v, now, step) for step, scalars in points for tag, v in scalars.items()
        ]
        for some in _pieces(metrics, _MLFLOW_METRICS):
            self._client.log_batch(self.id, metrics=some)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


def open_mlflow(config: Config, known: str | None) -> Service:
    """The run `known`, running again, or a new one in experiment log.project."""
    from mlflow import MlflowClient
    from mlflow.entities import Param

    client, name = MlflowClient(), config.log.project
    if known:
        client.update_run(known, status="RUNNING")
    else:
        experiment = client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else client.create_experiment(name)
        known = client.create_run(place, run_name=_name(config)).info.run_id
        params = [Param(key, str(value)) for key, value in hparams(config)]
        for some in _pieces(params, _MLFLOW_PARAMS):
            client.log_batch(known, params=some)
    announce("log.mlflow", f"run {known} of experiment {name}")
    return _MLflow(client, known)


def _name(config: Config) -> str:
    """The last two parts of the run directory: `tiny/2026-01-31_12-00-00-3fa2`, `sweep/7`."""
    return "/".join(Path(config.run.dir).parts[-2:])


def _pieces(items: list[Any], length: int) -> Iterator[list[Any]]:
    return (items[start : start + length] for start in range(0, len(items), length))


@contextmanager
def _nothing_to_answer() -> Iterator[None]:
    """Without a key wandb asks for one at a terminal; beside a running training nobody answers."""
    terminal = sys.stdin
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = terminal
