"""The command line, run in this process: what runs, what it leaves on disk, how it exits."""

import re
from pathlib import Path

import pytest
import yaml

from configs import load
from configs.saved import read_config


def _files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_training_gets_a_directory_of_its_own(command_line, tmp_path):
    assert command_line("train.steps=3", "run.name=1e3") == 0
    assert command_line("train.steps=3", "run.name=1e3") == 0
    first, second = (config.run.dir for config in command_line.ran)
    assert first != second
    assert re.fullmatch(rf"{tmp_path}/runs/1e3/\d{{4}}-\d\d-\d\d_\d\d-\d\d-\d\d-\w{{4}}", first)
    assert len(_files(tmp_path)) == 2 * len([".hydra/config", ".hydra/hydra", ".hydra/overrides"])


def test_two_launches_in_one_second_do_not_share_a_directory(command_line, monkeypatch, tmp_path):
    names = iter(["same", "same", "same", "other"])
    monkeypatch.setattr("configs.directories.token_hex", lambda _: next(names))
    monkeypatch.setattr("configs.directories.datetime", _StoppedClock)
    assert [command_line(), command_line()] == [0, 0]
    assert [config.run.dir for config in command_line.ran] == [
        f"{tmp_path}/runs/tiny/now-same",
        f"{tmp_path}/runs/tiny/now-other",
    ]


class _StoppedClock:
    @staticmethod
    def now():
        return _StoppedClock()

    def __format__(self, pattern):
        return "now"


@pytest.mark.parametrize("spelling", ["run.dir", "hydra.run.dir"])
def test_run_dir_says_where_hydra_writes(spelling, command_line, tmp_path):
    assert command_line(f"{spelling}=a b/ü=1", "train.steps=3") == 0
    assert command_line.ran[0].run.dir == str(tmp_path / "a b" / "ü=1")
    assert _files(tmp_path) == [
        f"a b/ü=1/.hydra/{name}.yaml" for name in ("config", "hydra", "overrides")
    ]


@pytest.mark.parametrize("mode", ["eval", "generate", "plan"])
def test_other_modes_leave_no_trace(mode, command_line, trained, tmp_path):
    command_line.behaviour = trained
    assert command_line("run.dir=RUN") == 0
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in _files(tmp_path)}
    assert command_line(f"mode={mode}", "run.dir=RUN") == 0
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in _files(tmp_path)} == before
    assert command_line.ran[1].run.dir == str(tmp_path / "RUN")


@pytest.mark.parametrize("name", ["JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS"])
def test_several_processes_need_one_directory(name, command_line, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(name, "2")
    assert command_line() == 2
    assert f"run.dir=null: the processes of one run ({name}=2)" in capsys.readouterr().err
    assert _files(tmp_path) == []
    assert command_line("run.dir=RUN") == 0
    monkeypatch.setenv(name, "1")
    assert command_line() == 0


def test_a_run_repeats_from_what_hydra_saved(command_line, tmp_path):
    words = ["train.steps=1e1", "mesh.data=-1", "generate.prompt=a, 'b'", "run.name=007"]
    assert command_line("run.dir=RUN", *words) == 0
    assert command_line("--config-dir", "RUN/.hydra", "--config-name", "config") == 0
    first, again = command_line.ran
    assert again.run.dir.startswith(str(tmp_path / "runs" / "007"))
    assert (again.train, again.mesh, again.generate) == (first.train, first.mesh, first.generate)
    assert (again.model, again.schedule) == (first.model, first.schedule)


def test_a_folder_of_ones_own_adds_options(command_line, tmp_path):
    mine = tmp_path / "mine" / "experiment"
    mine.mkdir(parents=True)
    (mine / "short.yaml").write_text("# @package _global_\ntrain: {steps: 4}\n")
    assert command_line("--config-dir", "mine", "experiment=short", "mode=plan") == 0
    assert command_line.ran[0].train.steps == 4
    assert load(["experiment=short"], config_dir="mine").train.steps == 4


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--help"], ["FoldText", "base_125m, ", "docs/configuration.md"]),
        (["--cfg", "job"], ["num_layers: 4", "steps: 150"]),
        (["--cfg", "job", "--resolve"], ["fsdp: -1", "warmup_steps: 15"]),
        (["run.name=1e3", "--cfg", "job", "--package", "run"], ["name: '1e3'"]),
        (["--info", "defaults"], ["model/tiny", "optimizer/adamw"]),
        (["--cfg", "hydra"], ["job_logging"]),
    ],
)
def test_hydras_flags_show_and_run_nothing(words, shown, command_line, capsys, tmp_path):
    assert command_line(*words) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in shown), said
    assert command_line.ran == []
    assert _files(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--cfg", "job", "+typo=1"], "+typo"),
        (["--config-dir", "nowhere"], "nowhere"),
        (["--config-name", "nothing"], "nothing"),
        (["--config-path", "elsewhere"], "--config-dir"),
        (["--experimental-rerun", "x.pickle"], "--config-dir"),
    ],
)
def test_flags_that_lead_nowhere_are_refused(words, named, command_line, capsys, tmp_path):
    assert command_line(*words) == 2
    said = capsys.readouterr().err
    assert named in said
    assert "Traceback" not in said
    assert _files(tmp_path) == []


def test_flags_may_stand_between_overrides(command_line, capsys):
    assert command_line("train.steps=7", "--cfg", "job", "seed=3") == 0
    said = capsys.readouterr().out
    assert "steps: 7" in said
    assert "seed: 3" in said


def test_an_unexpected_error_exits_1_with_its_traceback(command_line, capsys):
    command_line.behaviour = lambda config: 1 // 0
    assert command_line("run.dir=RUN") == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 2, 130, 143])
def test_the_exit_code_of_the_run_is_that_of_the_process(code, command_line):
    command_line.behaviour = lambda config: code
    assert command_line("run.dir=RUN") == code


def test_what_hydra_saves_tells_the_whole_run(command_line, trained, tmp_path):
    command_line.behaviour = trained
    assert command_line("run.dir=RUN", "train.steps=30", "seed=3") == 0
    assert command_line("run.dir=RUN") == 0
    overrides = yaml.safe_load((tmp_path / "RUN/.hydra/overrides.yaml").read_text())
    assert {"train.steps=30", "seed=3"} <= set(overrides)
    assert read_config(tmp_path / "RUN/config.yaml").seed == 3


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--multirn", "did you mean --multirun?"),
        ("--hepl", "did you mean --help?"),
        ("-q", "-q:"),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest_one(flag, named, command_line, capsys):
    assert command_line(flag, "seed=1") == 2
    assert named in capsys.readouterr().err
    assert command_line.ran == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lr 1e-3", "--lr: settings have no dashes: optimizer.lr=1e-3"),
        ("-lr=1e-3", "-lr: settings have no dashes: optimizer.lr=1e-3"),
        ("--num-layers 3", "--num-layers: settings have no dashes: model.num_layers=3"),
        ("--model small_25m", "--model: settings have no dashes: model=small_25m"),
        ("--batch_size", "--batch_size: settings have no dashes: data.batch=VALUE"),
        ("--dtype=bfloat16", "model.param_dtype=bfloat16 or model.compute_dtype=bfloat16"),
        ("--resume auto", "--resume: settings have no dashes: checkpoint.resume=auto"),
        ("--resume", "--resume: there is no such flag; run.dir=RUN goes on with a run"),
        ("train.steps = 10", "train.steps = 10: no spaces around =; write train.steps=10"),
        ("train.steps =10 seed=1", "train.steps =10: no spaces around =; write train.steps=10"),
        ("train.steps= 10", "train.steps= 10: no spaces around =; write train.steps=10"),
    ],
)
def test_words_of_other_command_lines_are_answered_with_ours(words, said, command_line, capsys):
    assert command_line(*words.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[1].endswith(said)


@pytest.mark.parametrize(
    "words",
    [
        "--resume a/RUN",
        "--config a/RUN/config.yaml",
        "--checkpoint=a/RUN/checkpoints/150",
        "a/RUN",
        "resume=a/RUN",
    ],
)
def test_a_run_that_is_pointed_at_otherwise_is_answered_with_run_dir(
    words, command_line, trained, capsys
):
    command_line.behaviour = trained
    assert command_line("run.dir=a/RUN") == 0
    assert command_line(*words.split()) == 2
    assert "; run.dir=a/RUN goes on with that run\n" in capsys.readouterr().err


def test_a_name_that_no_disk_takes_is_refused(command_line, capsys, tmp_path):
    for key in ("run.dir", "compile_cache", "data.path"):
        assert command_line(f"{key}={'ü' * 150}/x") == 2
        said = capsys.readouterr().err
        assert key in said and "255 bytes at most" in said and "has 300" in said
    assert command_line.ran == [] and list(tmp_path.iterdir()) == []


def _leaves(name, code):
    """A run that writes a file into its directory, and returns a code."""

    def behaviour(config):
        file = Path(config.run.dir) / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        return code

    return behaviour


def test_a_run_that_is_refused_late_leaves_no_directory_of_its_own(command_line, tmp_path):
    command_line.behaviour = _leaves("train.log", 2)
    assert command_line() == 2
    assert list(tmp_path.iterdir()) == []
    assert command_line("run.dir=RUN") == 2, "a folder of the user's stays"
    assert "RUN/train.log" in _files(tmp_path)


@pytest.mark.parametrize(
    ("name", "code"), [("train.log", 1), ("metrics.jsonl", 2), ("checkpoints/1", 2)]
)
def test_what_has_failed_or_been_trained_stays(name, code, command_line, tmp_path):
    command_line.behaviour = _leaves(name, code)
    assert command_line() == code
    assert any(file.endswith(name) for file in _files(tmp_path))


def test_a_refused_folder_leaves_another_run_of_that_name_alone(command_line, tmp_path):
    assert command_line() == 0
    command_line.behaviour = _leaves("train.log", 2)
    assert command_line() == 2
    assert [str(folder) for folder in (tmp_path / "runs" / "tiny").iterdir()] == [
        command_line.ran[0].run.dir
    ]
