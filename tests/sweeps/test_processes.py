"""Jobs as processes: each alone, failures in their own log, signals passed on, sweeps continued."""

import csv
import json
import os

import pytest

from sweeps.results import objective

DONE = "log(step=1, loss=2.0); log(step=1, eval_loss=float(words['optimizer.lr']))"


def _table(folder):
    with (folder / "sweep.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _statuses(folder):
    return [row["status"] for row in _table(folder)]


def test_a_job_that_dies_fails_alone_and_in_its_own_log(stand_in, tmp_path, capfd):
    code = """
if words["seed"] == "1":
    print("no such thing", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
log(step=1, loss=2.0)
"""
    assert stand_in(code, "seed=0,1,2") == 1
    assert _statuses(tmp_path / "S") == ["done", "failed", "done"]
    log = (tmp_path / "S/1/train.log").read_text()
    assert "no such thing" in log
    assert "exit code 137" in log
    assert "2 of 3 jobs are done" in capfd.readouterr().out


def test_jobs_that_are_done_do_not_run_again(stand_in, tmp_path):
    unlucky = "log(step=1, loss=1.0); sys.exit(int(words['seed'] == '1'))"
    assert stand_in(unlucky, "seed=0,1") == 1
    assert stand_in("log(step=2, loss=1.0)", "seed=0,1") == 0
    lines = [(tmp_path / f"S/{n}/metrics.jsonl").read_text().splitlines() for n in (0, 1)]
    assert [len(job) for job in lines] == [1, 2]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_stops_the_job_and_ends_the_sweep_with_its_table(
    name, code, stand_in, tmp_path, capfd
):
    job = f"""
def saved(number, frame):
    log(step=2, loss=1.0)
    sys.exit(128 + number)
signal.signal(signal.{name}, saved)
log(step=1, loss=2.0)
os.kill(os.getppid(), signal.{name})
while True:
    signal.pause()
"""
    assert stand_in(job, "seed=0,1") == code
    assert _statuses(tmp_path / "S") == ["stopped", "unfinished"]
    assert [row["final_loss"] for row in _table(tmp_path / "S")] == ["1.0", ""]
    assert "0 of 2 jobs are done" in capfd.readouterr().out
    assert stand_in("log(step=3, loss=0.5)", "seed=0,1") == 0
    assert [row["final_loss"] for row in _table(tmp_path / "S")] == ["0.5", "0.5"]


OUTCOMES = """
if words["seed"] == "1":
    log(step=1, loss=float("nan"))
    sys.exit(1)
if words["seed"] == "2":
    with open(os.path.join(folder, "train.log"), "w") as file:
        file.write("09:00:00 ERROR step 1: loss=2.0 param_norm=inf: not finite\\n")
    sys.exit(1)
log(step=1, loss=2.0)
log(step=1, eval_loss=float("nan") if words["seed"] == "3" else 1.5)
"""


def test_a_sweeper_is_told_the_eval_loss_and_infinity_for_what_diverged(stand_in, tmp_path):
    assert stand_in(OUTCOMES, "seed=0,1,2,3") == 1
    told = [objective(tmp_path / "S" / str(job)) for job in range(4)]
    assert told == [1.5, float("inf"), float("inf"), float("inf")]
    assert _statuses(tmp_path / "S") == ["done", "diverged", "diverged", "done"]


def test_jobs_that_evaluate_have_their_loss_in_the_table(stand_in, tmp_path, capfd):
    job = "print(f'eval: step=7 eval_loss={float(words[\"seed\"]) / 4!r} perplexity=1.0')"
    assert stand_in(job, "mode=eval", "run.dir=R", "seed=1,2") == 0
    assert [row["eval_loss"] for row in _table(tmp_path / "S")] == ["0.25", "0.5"]
    assert "eval: step=7 eval_loss=0.5" in capfd.readouterr().out
    assert (tmp_path / "S/1/terminal.log").read_text().startswith("eval: step=7")


def test_several_jobs_run_at_once(stand_in, tmp_path):
    meet = """
print("here", flush=True)
mine, other = (f"fifo{n}" for n in (words["seed"], str(1 - int(words["seed"]))))
first, second = (mine, other) if words["seed"] == "0" else (other, mine)
for name in (first, second):
    with open(name, "w" if name == mine else "r") as end:
        end.write("x") if name == mine else end.read()
"""
    for n in (0, 1):
        os.mkfifo(tmp_path / f"fifo{n}")
    assert stand_in(meet, "seed=0,1", "hydra.launcher.jobs=2") == 0
    assert (tmp_path / "S/1/terminal.log").read_text() == "here\n"


def test_the_best_value_at_the_edge_is_pointed_out(stand_in, tmp_path, capfd):
    assert stand_in(DONE, "optimizer.lr=0.3,0.2,0.1") == 0
    warning = "optimizer.lr=0.1 is the best of job 2 and the smallest that was tried"
    assert warning in capfd.readouterr().err
    assert warning in (tmp_path / "S/sweep.html").read_text()


def test_another_sweep_in_the_same_directory_is_refused(stand_in, tmp_path, capfd):
    assert stand_in("log(step=1, loss=1.0)", "seed=0,1") == 0
    assert stand_in("log(step=1, loss=1.0)", "seed=5,6") == 2
    assert "holds another sweep: job 0 was seed=0" in capfd.readouterr().err
    assert json.loads((tmp_path / "S/0/job.json").read_text())["overrides"] == ["seed=0"]


@pytest.mark.parametrize(
    ("subdir", "named"), [("a/${hydra.job.num}", "without /"), ("same", "several jobs")]
)
def test_directories_neither_nest_nor_collide(subdir, named, stand_in, tmp_path, capfd):
    assert stand_in("", "seed=0,1", f"hydra.sweep.subdir={subdir}") == 2
    assert named in capfd.readouterr().err
    assert not list((tmp_path / "S").glob("*/*"))
