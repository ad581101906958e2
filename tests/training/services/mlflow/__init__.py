"""Stands in for the package mlflow: keeps what runs are told, both points of a step given twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from mlflow.entities import Metric, Param


@dataclass
class Run:
    experiment: str
    name: str
    params: dict[str, str] = field(default_factory=dict)
    points: list[tuple[int, str, float]] = field(default_factory=list)
    statuses: list[str] = field(default_factory=lambda: ["RUNNING"])


runs: dict[str, Run] = {}
experiments: dict[str, str] = {}


class MlflowClient:
    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        known = experiments.get(name)
        return SimpleNamespace(experiment_id=known) if known else None

    def create_experiment(self, name: str) -> str:
        assert name not in experiments
        return experiments.setdefault(name, str(len(experiments) + 1))

    def create_run(self, experiment_id: str, run_name: str) -> SimpleNamespace:
        run_id = f"run{len(runs)}"
        runs[run_id] = Run(experiment_id, run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id: str, metrics: list[Metric] = (), params: list[Param] = ()) -> None:
        assert len(metrics) <= 1000 and len(params) <= 100, "more than a server takes"
        runs[run_id].points += [(m.step, m.key, m.value) for m in metrics]
        runs[run_id].params.update({param.key: param.value for param in params})

    def update_run(self, run_id: str, status: str) -> None:
        runs[run_id].statuses.append(status)

    def set_terminated(self, run_id: str, status: str) -> None:
        runs[run_id].statuses.append(status)
