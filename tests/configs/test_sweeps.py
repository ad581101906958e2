"""--multirun: every job on its own, its verdict and its directory."""

from pathlib import Path

import pytest

from configs import load

_REPORT = ("multirun.yaml", "sweep.csv", "sweep.html")


@pytest.fixture
def sweep(command_line):
    """Sweeps whose jobs stay in this process."""
    return lambda *words: command_line(*words, "hydra/launcher=basic")


def _fails_at(steps, code):
    return lambda config: code if config.train.steps == steps else 0


def test_every_job_has_a_flat_directory_of_its_own(sweep, command_line, tmp_path):
    values = ["x" * 300, "a/b", "p=1"]
    words = ",".join(f"'{value}'" for value in values)
    assert sweep("--multirun", f"generate.prompt={words}") == 0
    (made,) = (tmp_path / "runs/sweeps").iterdir()
    assert [config.generate.prompt for config in command_line.ran] == values
    assert [config.run.dir for config in command_line.ran] == [f"{made}/{n}" for n in range(3)]
    assert all((Path(config.run.dir) / ".hydra").is_dir() for config in command_line.ran)
    assert {entry.name for entry in made.iterdir()} == {*"012", *_REPORT}


def test_a_refused_job_says_so_in_its_log_and_stops_no_other(sweep, command_line, capsys, tmp_path):
    assert sweep("-m", "train.steps=1,-1,2,many", "hydra.sweep.dir=S") == 1
    assert [config.train.steps for config in command_line.ran] == [1, 2]
    assert "train.steps=-1: must be at least 1" in (tmp_path / "S/1/train.log").read_text()
    assert "train.steps=many" in (tmp_path / "S/3/train.log").read_text()
    said = capsys.readouterr()
    assert f"2 of 4 jobs are done, in {tmp_path}/S" in said.out
    assert said.out.count(" refused ") == 2
    assert "Traceback" not in said.err


def test_a_failing_job_stops_no_other(sweep, command_line, capsys):
    def fail_once(config):
        if config.seed == 1:
            raise RuntimeError("boom")
        return 0

    command_line.behaviour = fail_once
    assert sweep("-m", "seed=0,1,2") == 1
    assert [config.seed for config in command_line.ran] == [0, 1, 2]
    said = capsys.readouterr()
    assert "RuntimeError: boom" in said.err
    assert "2 of 3 jobs are done" in said.out


@pytest.mark.parametrize("code", [130, 143])
def test_a_signal_ends_the_sweep(sweep, code, command_line):
    command_line.behaviour = _fails_at(2, code)
    assert sweep("-m", "train.steps=1,2,3") == code
    assert [config.train.steps for config in command_line.ran] == [1, 2]


def test_groups_and_numbers_are_swept_together(sweep, command_line):
    assert sweep("-m", "optimizer=lion,sgd", "optimizer.lr=1e-3,3e-4", "seed=7") == 0
    found = [(c.optimizer.name, c.optimizer.lr, c.seed) for c in command_line.ran]
    assert found == [(n, lr, 7) for n in ("lion", "sgd") for lr in (1e-3, 3e-4)]


def test_hydras_sweep_functions_work(sweep, command_line):
    assert sweep("-m", "train.steps=range(1,4)", "optimizer.lr=choice(0.1,0.2)") == 0
    assert [config.train.steps for config in command_line.ran] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["seed=1,2", "lr=3"], "did you mean optimizer.lr"),
        (["optimizer=sgd,adam"], "did you mean adamw"),
        (["seed=1,2", "train.steps=many"], "train.steps=many"),
        (["seed=1,2", "run.dir=RUN"], "hydra.sweep.dir"),
        (["seed=1,2", "seed=3"], "2 times"),
        (["seed=1,2", f"hydra.sweep.dir=S/{'ü' * 150}"], "255 bytes"),
    ],
)
def test_what_no_job_could_run_with_is_refused_before_the_first(
    sweep, words, named, command_line, capsys, tmp_path
):
    assert sweep("-m", *words) == 2
    assert named in capsys.readouterr().err
    assert command_line.ran == []
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_that_is_not_there_is_answered_with_the_nearest(command_line, capsys, tmp_path):
    assert command_line("-m", "seed=1,2", "hydra/launcher=proces") == 2
    assert "did you mean process?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_job_is_resumed_and_evaluated_by_its_path(sweep, command_line, trained):
    command_line.behaviour = trained
    assert sweep("-m", "train.steps=30,40", "hydra.sweep.dir=S") == 0
    assert command_line("run.dir=S/1") == 0
    assert command_line.ran[-1] == command_line.ran[1]
    assert sweep("-m", "mode=eval", "run.dir=S/0,S/1") == 0
    evaluated = command_line.ran[-2:]
    assert [Path(config.run.dir).name for config in evaluated] == ["0", "1"]
    assert [config.mode for config in evaluated] == ["eval", "eval"]
    assert load(["mode=eval", "run.dir=S/1"]).train.steps == 40


def test_paths_are_relative_to_where_the_command_was_given(sweep, command_line, tmp_path):
    (tmp_path / "text").touch()
    words = ["data=text", "data.path=text", "seed=1,2", "hydra.job.chdir=true"]
    assert sweep("-m", *words) == 0
    assert [config.data.path for config in command_line.ran] == [str(tmp_path / "text")] * 2


def test_one_sweep_after_another_has_another_directory(sweep, command_line, tmp_path):
    assert sweep("-m", "seed=1,2") == 0
    assert sweep("-m", "seed=1,2") == 0
    assert len(list((tmp_path / "runs/sweeps").iterdir())) == 2
