"""Values reach the config in the type of their key, as the user meant them."""

import pytest

from configs import load
from configs.fields import read
from configs.overrides import parse, quote, split_choices, to_hydra


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("train.steps=1e3", "train.steps", 1000),
        ("train.steps=2.0", "train.steps", 2),
        ("train.steps=+7", "train.steps", 7),
        ("++train.steps=7", "train.steps", 7),
        ("train.steps='7'", "train.steps", 7),
        ("train.steps=${data.batch}", "train.steps", 8),
        ("optimizer.lr=1e-3", "optimizer.lr", 0.001),
        ("optimizer.lr=1", "optimizer.lr", 1.0),
        ("optimizer.lr=.5", "optimizer.lr", 0.5),
        ("optimizer.lr=0", "optimizer.lr", 0.0),
        ("optimizer.clip_norm=null", "optimizer.clip_norm", None),
        ("data.epochs=NULL", "data.epochs", None),
        ("data.pack=FALSE", "data.pack", False),
        ("run.name=1e3", "run.name", "1e3"),
        ("run.name=2024_01_01", "run.name", "2024_01_01"),
        ("run.name=0x10", "run.name", "0x10"),
        ("run.name=true", "run.name", "true"),
        ("run.name='quoted'", "run.name", "quoted"),
        ("run.name=${optimizer.name}-3", "run.name", "adamw-3"),
        ("run.name=café 数", "run.name", "café 数"),
        ("model.remat=query,key", "model.remat", "query,key"),
        ("generate.prompt=a, b = {c} (d) [e] ~f", "generate.prompt", "a, b = {c} (d) [e] ~f"),
        ("generate.prompt='it' isn't 'quoted'", "generate.prompt", "'it' isn't 'quoted'"),
        ('generate.prompt="say \\"hi\\""', "generate.prompt", 'say "hi"'),
        ("generate.prompt=back\\", "generate.prompt", "back\\"),
        ("generate.prompt=\\'", "generate.prompt", "\\'"),
        ("generate.prompt=two\nlines", "generate.prompt", "two\nlines"),
        ("generate.prompt= lead", "generate.prompt", " lead"),
        ("generate.prompt=#: @", "generate.prompt", "#: @"),
        ("compile_cache=null", "compile_cache", None),
        ("model.rope_scaling={type: linear, factor: 2}", "model.rope_scaling.factor", 2.0),
    ],
)
def test_an_override_becomes_the_typed_value(override, key, value):
    found = read(load([override]), key)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("name", ["epoch=9.txt", "a b", "a,b", "ü", "it's", "x{y}", "~", "a\\"])
def test_a_path_is_taken_as_it_stands(name, tmp_path):
    file = tmp_path / name
    file.touch()
    assert load(["data=text", f"data.path={file}"]).data.path == str(file)
    assert load(["data=text", f"data.path={quote(str(file))}"]).data.path == str(file)


def test_paths_are_absolute_and_know_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x").touch()
    assert load(["data=text", "data.path=~/x"]).data.path == str(tmp_path / "x")
    assert load(["run.dir=runs/one"]).run.dir == str(tmp_path / "runs" / "one")
    assert load([]).run.dir.startswith(str(tmp_path / "runs" / "tiny") + "/")


def test_environment_variables_can_be_used(monkeypatch):
    monkeypatch.setenv("RUN_NAME", "from the shell")
    assert load(["run.name=${oc.env:RUN_NAME}"]).run.name == "from the shell"


@pytest.mark.parametrize(
    ("value", "pieces"),
    [
        ("1,2", ["1", "2"]),
        ("a, b", ["a", "b"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("f(1,2)", ["f(1,2)"]),
        ('"a\\",b",c', ['"a\\",b"', "c"]),
        ("", [""]),
    ],
)
def test_a_sweep_is_split_at_its_outer_commas(value, pieces):
    assert split_choices(value) == pieces


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("train.steps=1e3,2.0,x", "train.steps=1000,2,'x'"),
        ("run.name=1e3,b", "run.name='1e3','b'"),
        ("run.name='a,b',c", "run.name='a,b','c'"),
        ("optimizer.lr=choice(1e-3,3e-4)", "optimizer.lr=choice(1e-3,3e-4)"),
        ("train.steps=range(1,4)", "train.steps=range(1,4)"),
        ("model=tiny,small_25m", "model=tiny,small_25m"),
        ("hydra.sweep.dir=a b", "hydra.sweep.dir=a b"),
    ],
)
def test_hydra_is_told_each_value_of_a_sweep_as_meant(typed, told):
    assert to_hydra(parse(typed), multirun=True) == told
