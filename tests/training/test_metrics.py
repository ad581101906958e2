"""Metrics: what is written where, read back exactly, once per step, whatever happened before."""

from __future__ import annotations

import json
import math
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from training.metric_table import METRICS, PAGE, with_table
from training.metrics import MetricsLog, read_metrics
from training.phases import Phases

# The names that users' dashboards rely on.
TAGS = {
    "learning": "loss perplexity grad_norm param_norm current_learning_rate total_weights",
    "perf": "step_time_seconds per_device_tflops_per_sec per_device_tokens_per_sec mfu "
    "data_wait_seconds init_seconds restore_seconds checkpoint_seconds compile_seconds/init "
    "compile_seconds/train_step compile_seconds/eval_step",
    "eval": "avg_loss avg_perplexity",
    "memory": "bytes_in_use",
    "context_parallel": "balance",
    "data": "padding_fraction epoch",
}


def accumulate(run_dir: Path) -> Any:
    """TensorBoard's own reader of an event directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run_dir))
    accumulator.Reload()
    return accumulator


def points(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in accumulate(run_dir).Scalars(tag)]


def as_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def test_the_table_has_the_names_that_dashboards_use() -> None:
    expected = {f"{group}/{name}" for group, names in TAGS.items() for name in names.split()}
    assert expected <= {metric.tag for metric in METRICS.values()}
    assert len({metric.tag for metric in METRICS.values()}) == len(METRICS)


def test_the_page_has_the_table_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run python -m training.metric_table"
    for metric in METRICS.values():
        row = f"| `{metric.tag}` | {metric.meaning} | {metric.unit} | {metric.when} |"
        assert page.count(row) == 1


def test_a_step_is_one_exact_line_and_one_point_a_tag(tmp_path: Path) -> None:
    values = {
        "loss": 0.1 + 0.2,
        "grad_norm": 1 / 3,
        "learning_rate": 3e-4,
        "tokens": 2**53 - 1,
        "step_time_seconds": 0.25,
        "tokens_per_second": 12345.678,
        "data_wait_seconds": 1e-9,
    }
    with MetricsLog(tmp_path) as metrics:
        metrics.write(1, {"mfu": 0.5, **dict(reversed(values.items()))})
        metrics.write(1, {"eval_loss": 0.0, "eval_tokens": 7})
    first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert list(json.loads(first).items()) == list({"step": 1, **values}.items())
    assert json.loads(second) == {"step": 1, "eval_loss": 0.0, "eval_tokens": 7}
    assert points(tmp_path, "learning/loss") == [(1, as_float32(0.1 + 0.2))]
    assert points(tmp_path, "learning/perplexity") == [(1, as_float32(math.exp(0.1 + 0.2)))]
    assert points(tmp_path, "eval/avg_perplexity") == [(1, 1.0)]
    assert points(tmp_path, "perf/mfu") == [(1, 0.5)]


def test_what_is_measured_once_and_text_stand_at_the_first_step(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, start_step=6) as metrics:
        metrics.once({"perf/compile_seconds/train_step": 4.5, "init_seconds": 0.5})
        metrics.text("config", "    seed: 1")
    assert points(tmp_path, "perf/compile_seconds/train_step") == [(7, 4.5)]
    assert points(tmp_path, "perf/init_seconds") == [(7, 0.5)]
    (text,) = accumulate(tmp_path).Tensors("config/text_summary")
    assert text.step == 7
    assert text.tensor_proto.string_val == [b"    seed: 1"]
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_any_scalar_is_logged_and_nothing_else_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values: dict[str, Any] = {
        "loss": jnp.bfloat16(1.5),
        "grad_norm": np.float32("nan"),
        "param_norm": jnp.ones((1,)),
        "learning_rate": np.array([2.0]),
        "tokens": np.int64(3),
        "mfu": True,
        "eval_loss": None,
        "balance": "text",
        "a/b c:d": math.inf,
        "a/b_c_d": -math.inf,
        "epoch": np.ones(2),
    }
    with MetricsLog(tmp_path) as metrics:
        for step in (1, 2):
            metrics.write(step, values)
    line = read_metrics(tmp_path)[2]
    assert line.pop("grad_norm") != line.get("grad_norm")
    assert line == {"step": 2, "loss": 1.5, "learning_rate": 2.0, "tokens": 3}
    assert isinstance(line["tokens"], int)
    (_, nan), _ = points(tmp_path, "learning/grad_norm")
    assert math.isnan(nan)
    assert points(tmp_path, "learning/param_norm") == [(1, 1.0), (2, 1.0)]
    assert points(tmp_path, "a/b c:d") == [(1, math.inf), (2, math.inf)]
    assert points(tmp_path, "a/b_c_d") == [(1, -math.inf), (2, -math.inf)]
    complaints = [record.getMessage() for record in caplog.records]
    assert len(complaints) == 2, "once for each name"
    assert "balance" in complaints[0]


def test_a_diverged_loss_has_an_infinite_perplexity(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as metrics:
        metrics.write(1, {"loss": 1e6})
        metrics.write(2, {"loss": math.nan})
    (_, first), (_, second) = points(tmp_path, "learning/perplexity")
    assert first == math.inf
    assert math.isnan(second)


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    """Ten steps; the first process crashes after logging eight, with a checkpoint of step six."""
    crashed = MetricsLog(tmp_path)
    for step in range(1, 9):
        crashed.write(step, {"loss": float(step)})
    crashed.flush()
    with MetricsLog(tmp_path, start_step=6) as resumed:
        for step in range(7, 11):
            resumed.write(step, {"loss": 100.0 + step})
    crashed.close()
    expected = {**{s: float(s) for s in range(1, 7)}, **{s: 100.0 + s for s in range(7, 11)}}
    assert points(tmp_path, "learning/loss") == list(expected.items())
    assert {s: line["loss"] for s, line in read_metrics(tmp_path).items()} == expected


def test_a_line_cut_short_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    with MetricsLog(tmp_path, start_step=1) as metrics:
        metrics.write(2, {"loss": 2.0})
    assert read_metrics(file) == {1: {"step": 1, "loss": 1.0}, 2: {"step": 2, "loss": 2.0}}


def test_an_eval_line_and_a_step_line_add_up(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as metrics:
        metrics.write(2, {"loss": 1.0, "tokens": 5})
        metrics.write(2, {"eval_loss": 3.0})
        metrics.write(1, {"loss": 4.0})
        metrics.write(2, {"loss": 2.0, "tokens": 5})
    assert list(read_metrics(tmp_path).items()) == [
        (1, {"step": 1, "loss": 4.0}),
        (2, {"step": 2, "loss": 2.0, "tokens": 5, "eval_loss": 3.0}),
    ]


def test_two_writers_in_one_second_keep_their_files(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as one, MetricsLog(tmp_path, start_step=1) as two:
        one.write(1, {"loss": 1.0})
        two.write(2, {"loss": 2.0})
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert points(tmp_path, "learning/loss") == [(1, 1.0), (2, 2.0)]


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "run", enabled=False) as metrics:
        metrics.write(1, {"loss": 1.0})
        metrics.text("config", "x")
        metrics.flush()
    assert not (tmp_path / "run").exists()


WRITER = """
import sys
from training.metrics import MetricsLog
metrics = MetricsLog(sys.argv[1])
for step in range(1, 10**6):
    metrics.write(step, {"loss": float(step)})
    print(step, flush=True)
"""


def test_sigkill_loses_at_most_the_last_point(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and int(line) < 50:
            pass
        process.send_signal(signal.SIGKILL)
        told = int([line, *process.stdout.read().split()][-1])
    assert list(read_metrics(tmp_path))[:told] == list(range(1, told + 1))
    steps = [step for step, _ in points(tmp_path, "learning/loss")]
    assert steps[: told - 1] == list(range(1, told))


FULL_DISK = """
import resource, sys
from training.metrics import MetricsLog
with MetricsLog(sys.argv[1]) as metrics:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, -1))  # no file may grow beyond 2000 bytes
    for step in range(1, 101):
        metrics.write(step, {"loss": float(step)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    metrics.write(101, {"loss": 101.0})
"""


def test_a_full_disk_costs_lines_and_no_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stderr.count("metrics.jsonl: lines are lost: [Errno 27]") == 1
    assert result.stderr.count("TensorBoard events are lost from here on") == 1
    steps = list(read_metrics(tmp_path))
    assert steps[:20] == list(range(1, 21))
    assert steps[-1] == 101
    assert [step for step, _ in points(tmp_path, "learning/loss")][:5] == [1, 2, 3, 4, 5]


def test_an_exception_loses_no_point(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), MetricsLog(tmp_path) as metrics:
        metrics.write(1, {"loss": 1.0})
        metrics.write(2, {"loss": 1 / 0})
    assert points(tmp_path, "learning/loss") == [(1, 1.0)]


def test_phases_add_up_until_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 10.0, 12.5, 20.0, 20.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    clock = Phases()
    with clock.phase("data_wait"):
        pass
    with clock.phase("data_wait"):
        pass
    with pytest.raises(KeyError), clock.phase("eval"):
        raise KeyError
    assert clock.seconds("data_wait") == 3.5
    assert clock.take() == {"data_wait": 3.5, "eval": 0.5}
    assert clock.take() == {}
    assert clock.seconds("data_wait") == 0.0
