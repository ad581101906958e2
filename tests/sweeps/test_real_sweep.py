"""Whole sweeps of the real train.py: one compilation, several device counts, a page to read."""

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
TINY = (
    "model.num_layers=1", "model.embed_dim=16", "model.mlp_dim=16", "model.num_heads=2",
    "model.num_kv_heads=2", "model.head_dim=8", "data=synthetic", "data.seq_len=16",
    "data.batch=2", "data.eval_rows=2", "train.steps=2", "train.eval_every=0",
    "compile_cache=a cache",
)  # fmt: skip


def _sweep(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), "--multirun", *TINY, *words]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def _table(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_jobs_that_differ_in_numbers_compile_once(tmp_path: Path) -> None:
    home = tmp_path / "a b=ü,~"
    (home / "a cache").mkdir(parents=True)
    (home / "a cache" / "orphan-cache").write_bytes(b"")  # of a process that was killed
    numbers = ("optimizer.lr=1e-3,-1,1e-2", "hydra.sweep.dir=s w=ü,~")
    done = _sweep(home, *numbers)
    sweep = home / "s w=ü,~"
    assert done.returncode == 1, done.stderr
    assert [row["status"] for row in _table(sweep)] == ["done", "refused", "done"]
    assert "optimizer.lr=-1.0: must be at least 0" in (sweep / "1/train.log").read_text()
    assert "2 of 3 jobs are done" in done.stdout
    assert "<svg" in (sweep / "sweep.html").read_text()
    compiled = [entry.stat().st_mtime_ns for entry in (home / "a cache").iterdir()]
    assert len(compiled) > 5
    assert max(compiled) < (sweep / "2/.hydra/overrides.yaml").stat().st_mtime_ns
    first, _, last = _table(sweep)
    assert float(first["eval_loss"]) != float(last["eval_loss"])
    assert int(first["parameters"].replace(",", "")) > 1000


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL takes the sweep and its second job; the third is refused, whenever it comes."""
    words = (
        *(word for word in TINY if "steps" not in word), "train.steps=2,400,-1",
        "schedule=constant", "checkpoint.every=50", "hydra.sweep.dir=S",
    )  # fmt: skip
    command = [sys.executable, str(ROOT / "train.py"), "--multirun", *words]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as sweep:
        assert sweep.stdout is not None
        # the save of step 100 has waited for that of step 50
        next(line for line in sweep.stdout if line.startswith("step 110/400"))
        job = int((tmp_path / "S/1/.lock").read_text().split()[1])
        os.kill(sweep.pid, signal.SIGKILL)
        os.kill(job, signal.SIGKILL)
        sweep.stdout.read()  # ends when both are gone
    done = (tmp_path / "S/0/metrics.jsonl").read_bytes()
    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1, "for the third job"
    assert [row["status"] for row in _table(tmp_path / "S")] == ["done", "done", "refused"]
    assert "job 0 is done already" in again.stdout
    assert (tmp_path / "S/0/metrics.jsonl").read_bytes() == done
    restored = re.search(r"restore: step (\d+) in", again.stdout)
    assert restored is not None and int(restored[1]) in range(50, 400, 50)
    assert list(read_metrics(tmp_path / "S/1")) == list(range(1, 401))


def test_device_counts_differ_between_jobs_that_run_at_once(tmp_path: Path) -> None:
    done = _sweep(tmp_path, "mesh.simulate=1,2", "hydra.sweep.dir=S", "hydra.launcher.jobs=2")
    assert done.returncode == 0, done.stderr
    losses = [float(row["final_loss"]) for row in _table(tmp_path / "S")]
    assert abs(losses[0] - losses[1]) < 1e-5
    assert "2 cpu devices" in (tmp_path / "S/1/terminal.log").read_text()
