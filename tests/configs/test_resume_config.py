"""A run directory that exists: what a command takes from it, and which changes it refuses."""

import pytest

from configs import ConfigError, load
from configs.resume import permitted_changes
from configs.saved import read_config
from configs.validate import resolve

RUN = "run.dir=RUN"


@pytest.fixture
def run(command_line, trained):
    """A command line in whose directory RUN was trained for 30 steps."""
    command_line.behaviour = trained
    words = ["train.steps=30", "data.seq_len=64", "model.num_layers=2", "seed=3", "run.name=first"]
    assert command_line(RUN, *words, "mesh.simulate=4", "mesh.context=2") == 0
    return command_line


def test_pointing_at_a_run_goes_on_with_its_config(run, capsys):
    assert run(RUN) == 0
    first, again = run.ran
    assert again == first
    assert "data.seq_len=64" in capsys.readouterr().out


def test_the_same_command_again_is_the_same_config(run):
    assert (
        run(RUN, "model.num_layers=2", "data.seq_len=64", "mesh.simulate=4", "mesh.context=2") == 0
    )
    assert run.ran[1] == run.ran[0]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.seq_len=128", "data.seq_len: saved 64, now 128"),
        ("data.batch=4", "data.batch: saved 8, now 4"),
        ("data.seed=1", "data.seed: saved 0, now 1"),
        ("data.pack=false", "data.pack: saved True, now False"),
        ("data=synthetic", "data.source: saved stdlib, now synthetic"),
        ("seed=4", "seed: saved 3, now 4"),
        ("model.num_layers=3", "model.num_layers: saved 2, now 3"),
        ("model.param_dtype=bfloat16", "model.param_dtype: saved float32, now bfloat16"),
        ("model=small_25m", "model.embed_dim: saved 192, now 512"),
        ("optimizer=sgd", "optimizer.name: saved adamw, now sgd"),
        ("train.steps=40", "schedule.total_steps=30 keeps"),
        ("checkpoint.resume=never", "checkpoint.resume=never, but"),
    ],
)
def test_a_change_that_the_saved_state_does_not_allow_is_refused(override, problem, run, capsys):
    assert run(RUN, override) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert "Traceback" not in said
    assert len(run.ran) == 1


def test_every_refused_change_is_listed(run):
    with pytest.raises(ConfigError) as refused:
        load([RUN, "data.batch=4", "seed=4", "model.num_layers=3"])
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        "seed",
        "model.num_layers",
        "data.batch",
    ]


@pytest.mark.parametrize(
    ("overrides", "listed"),
    [
        ([], []),
        (["optimizer.lr=1e-4"], ["optimizer.lr: saved 0.003, now 0.0001"]),
        (["checkpoint.every=5"], ["checkpoint.every: saved 50, now 5"]),
        (["context_parallel=ring"], ["context_parallel.strategy: saved all_gather, now ring"]),
        (["model.remat=full"], ["model.remat: saved dots, now full"]),
        (["data.eval_rows=null"], ["data.eval_rows: saved 64, now null"]),
        (["init.strategy=single_graph"], ["init.strategy: saved two_stage, now single_graph"]),
        (
            ["train.steps=40", "schedule.total_steps=30"],
            ["train.steps: saved 30, now 40", "schedule.total_steps: saved null, now 30"],
        ),
    ],
)
def test_a_change_that_is_allowed_is_listed_for_the_log(overrides, listed, run):
    assert permitted_changes(load([RUN, *overrides])) == listed


def test_a_command_that_sets_an_axis_describes_the_whole_mesh(run):
    mesh = load([RUN, "mesh.simulate=8"]).mesh
    assert (mesh.simulate, mesh.fsdp, mesh.context) == (8, -1, 1)
    assert load([RUN, "mesh=auto"]).mesh.simulate == 0


def test_the_mesh_that_a_run_asked_for_fits_itself_to_other_devices(command_line, trained):
    command_line.behaviour = lambda config: trained(resolve(config, 4))
    assert command_line(RUN, "mesh.context=2") == 0
    assert read_config("RUN/config.yaml").mesh.fsdp == 2
    again = load([RUN])
    assert (again.mesh.fsdp, again.mesh.context) == (-1, 2)
    assert permitted_changes(resolve(again, 4)) == []
    assert permitted_changes(resolve(again, 8)) == ["mesh.fsdp: saved 2, now 4"]


def test_a_constant_schedule_has_no_length_to_change(command_line, trained):
    command_line.behaviour = trained
    assert command_line(RUN, "schedule=constant", "train.steps=300") == 0
    again = load([RUN, "schedule=constant", "train.steps=400"])
    assert (again.train.steps, again.schedule.warmup_steps) == (400, 20)


def test_the_warm_up_of_a_run_stays_when_its_schedule_is_named_again(command_line, trained):
    command_line.behaviour = trained
    assert command_line(RUN, "schedule=constant", "train.steps=30") == 0
    assert load([RUN, "schedule=constant", "train.steps=300"]).schedule.warmup_steps == 3


def test_evaluation_takes_the_run_but_not_its_devices(run):
    assert run("mode=eval", RUN) == 0
    config = run.ran[1]
    assert (config.model.num_layers, config.data.seq_len, config.seed) == (2, 64, 3)
    assert (config.mesh.simulate, config.mesh.context, config.mode) == (0, 1, "eval")


def test_evaluation_may_use_other_data_but_no_other_model(run, tmp_path, capsys):
    (tmp_path / "text").write_text("x")
    assert run("mode=eval", RUN, "data=text", "data.path=text", "data.batch=2", "seed=9") == 0
    assert (run.ran[1].data.source, run.ran[1].data.batch, run.ran[1].data.seq_len) == (
        "text",
        2,
        512,
    )
    assert run("mode=eval", RUN, "model.num_layers=3") == 2
    assert "model.num_layers: saved 2, now 3" in capsys.readouterr().err


def test_an_explicit_value_wins_even_when_it_is_the_default(run):
    assert load(["mode=eval", RUN, "data.seq_len=512"]).data.seq_len == 512
    assert load(["mode=eval", RUN, "experiment=smoke"]).data.source == "synthetic"


def test_a_run_that_has_saved_nothing_may_still_change(command_line, trained, tmp_path):
    command_line.behaviour = trained
    assert command_line(RUN, "data.batch=4") == 0
    (tmp_path / "RUN/checkpoints/150").rmdir()
    config = load([RUN, "model.num_layers=3"])
    assert (config.model.num_layers, config.data.batch) == (3, 4)


def test_never_resuming_takes_nothing_from_an_older_run(command_line, trained, tmp_path):
    command_line.behaviour = trained
    assert command_line(RUN, "data.batch=4") == 0
    (tmp_path / "RUN/checkpoints/150").rmdir()
    assert load([RUN, "checkpoint.resume=never"]).data.batch == 8


def test_a_damaged_saved_config_is_refused_by_name(run, tmp_path, capsys):
    (tmp_path / "RUN/config.yaml").write_text("train: {steps: many}\nnew_key: 1\n")
    assert run(RUN) == 2
    said = capsys.readouterr().err
    assert "train.steps=many" in said
    assert "new_key" in said


def test_a_saved_config_that_is_older_than_a_key_takes_its_default(run, tmp_path):
    file = tmp_path / "RUN/config.yaml"
    lines = [line for line in file.read_text().splitlines() if "prefetch" not in line]
    file.write_text("\n".join(lines))
    assert load([RUN]).data.prefetch == 2
