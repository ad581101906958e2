"""Edges of ranges, scaling laws, charts: values worked out by hand."""

import html
import re
import shlex
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.chart import Line, chart
from sweeps.findings import agreement, edge_warnings, fit, scaling_law
from sweeps.page import page
from sweeps.report import fitted, report, rows, write_csv
from sweeps.results import Result


def _job(number, key, value, loss, *, code=0, parameters=None, tokens=None):
    overrides = (f"{key}={value}",)
    return Result(
        number, overrides, code, 1.5, Path(f"/s/{number}"), losses=((1, 9.0), (2, loss)),
        values={key: str(value)}, parameters=parameters, tokens=tokens,
    )  # fmt: skip


def _sweep(key, losses):
    return [_job(n, key, value, loss) for n, (value, loss) in enumerate(losses.items())]


@pytest.mark.parametrize(
    ("losses", "word"),
    [({1: 1.0, 2: 2.0, 3: 3.0}, "smallest"), ({1: 3.0, 2: 2.0, 3: 1.0}, "largest")],
)
def test_a_best_value_at_an_edge_is_named(losses, word):
    (line,) = edge_warnings(_sweep("optimizer.lr", losses))
    assert word in line


def test_a_best_value_inside_two_values_and_other_keys_say_nothing():
    assert edge_warnings(_sweep("optimizer.lr", {1: 2.0, 2: 1.0, 3: 2.0})) == []
    assert edge_warnings(_sweep("optimizer.lr", {1: 2.0, 2: 1.0})) == []
    assert edge_warnings(_sweep("model.embed_dim", {1: 3.0, 2: 2.0, 3: 1.0})) == []


def test_a_diverged_job_is_an_edge_that_was_seen():
    jobs = [*_sweep("optimizer.lr", {1: 2.0, 2: 1.0}), _job(2, "optimizer.lr", 3, float("nan"))]
    jobs[2] = replace(_job(2, "optimizer.lr", 3, float("nan"), code=1), not_finite=True)
    assert jobs[2].status == "diverged"
    assert jobs[2].goal == float("inf")
    assert edge_warnings(jobs) == []


def test_losses_that_should_agree_are_compared():
    losses = {"zigzag": 2.5, "striped": 2.5 + 2e-6, "contiguous": 2.5}
    said = agreement(_sweep("context_parallel.layout", losses))
    assert said is not None and said.startswith("the last losses of 3 jobs lie 2.0e-06 apart")
    assert agreement(_sweep("optimizer.lr", {1: 2.5, 2: 2.5})) is None
    assert agreement(_sweep("mesh.context", {1: 2.5})) is None


def test_a_law_is_found_again():
    points = [(10.0**k, 1.5 + 40.0 * (10.0**k) ** -0.25) for k in (8, 9, 10, 11, 12)]
    law = fit(points)
    assert law.irreducible == pytest.approx(1.5, abs=0.01)
    assert law.exponent == pytest.approx(0.25, abs=0.01)
    assert law(1e13) == pytest.approx(1.5 + 40.0 * 1e13**-0.25, abs=2e-3)


def test_a_ladder_has_a_law_and_a_learning_rate_sweep_none():
    sizes = (1000, 2000, 4000)
    ladder = [
        _job(n, "model.embed_dim", size, 1e6 / size, parameters=size, tokens=20 * size)
        for n, size in enumerate(sizes)
    ]
    law = scaling_law(ladder)
    assert law is not None
    assert [flops for flops, _ in law.points] == [6 * 20 * size**2 for size in sizes]
    assert law.exponent == pytest.approx(0.5)  # the loss halves when the compute is four times
    same = [_job(n, "seed", n, 1.0 + n, parameters=9, tokens=9 * 9**n) for n in range(4)]
    assert scaling_law(same) is None


def test_a_chart_places_points_where_they_belong():
    picture = ET.fromstring(chart([Line("a<b", [(1, 0.0), (100, 1.0)])], "x", "y", log_x=True))
    (path,) = (p for p in picture.iter() if p.tag.endswith("path") and p.get("fill") == "none")
    (x1, y1), (x2, y2) = re.findall(r"([\d.]+) ([\d.]+)", path.get("d", ""))
    assert (float(x1), float(x2)) == (62, 744)  # left and right margin of a picture 760 wide
    assert float(y1) > float(y2)  # larger values are further up
    assert "10" in [t.text for t in picture.iter() if t.tag.endswith("text")]


def test_an_axis_of_steps_counts_in_whole_steps():
    picture = ET.fromstring(chart([Line("a", [(1, 0.25), (4, 0.5)])], "step", "loss"))
    texts = [text.text for text in picture.iter() if text.tag.endswith("text")]
    assert texts[texts.index("1") : texts.index("step")] == ["1", "2", "3", "4"]


def test_the_page_has_a_command_for_each_job_that_a_shell_takes(tmp_path):
    jobs = _sweep("data.path", {"'/a b,c.txt'": 1.0, "'x'": 2.0})
    text = page(tmp_path, jobs, rows(jobs), [], None)
    commands = [html.unescape(code) for code in re.findall("<code>(python.*?)</code>", text)]
    words = ["python", "train.py", "data.path='/a b,c.txt'", "run.dir=/s/0"]
    assert shlex.split(commands[0]) == words


def test_a_chart_without_numbers_is_no_chart():
    assert chart([Line("a", [(1, float("nan"))])], "x", "y") == ""
    assert "circle" in chart([Line("a", [(1, 2.0)])], "x", "y")


def test_the_table_shows_what_differs_and_the_csv_everything(tmp_path):
    jobs = _sweep("data.path", {"/a,b.txt": 1.0, "x" * 300: 2.0})
    headings, first, second = rows(jobs)
    assert headings[:3] == ["job", "data.path", "status"]
    assert first[1] == "/a,b.txt"
    assert len(second[1]) <= 40
    write_csv(tmp_path / "sweep.csv", jobs)
    assert f'0,"/a,b.txt",done,0,{1.0}' in (tmp_path / "sweep.csv").read_text()


def test_a_table_that_does_not_fit_loses_groups_of_keys_and_then_columns():
    headings = ["job", "optimizer.lr", "loss", "compile s", "min"]
    table = [headings, ["0", "0.0003", "3.6345", "17.1", "0.8"]]
    # 3 + 12 + 6 + 9 + 3 characters of cells, 4 * 3 between them, 2 at the edges
    assert fitted(table, ["optimizer.lr"], 47) == table
    assert fitted(table, ["optimizer.lr"], 46)[0] == ["job", "lr", "loss", "compile s", "min"]
    assert fitted(table, ["optimizer.lr"], 40) == [
        ["job", "lr", "loss", "min"],
        ["0", "0.0003", "3.6345", "0.8"],
    ]


def test_keys_that_end_alike_keep_their_groups():
    headings = ["job", "seed", "data.seed", "loss", "compile s", "min", "best", "directory"]
    kept = fitted([[*headings, "tokens/s"]], ["seed", "data.seed"], 10)
    assert kept == [["job", "seed", "data.seed", "loss"]]


@pytest.mark.parametrize("columns", [80, 60])
def test_no_number_is_broken_on_a_narrow_terminal(columns, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    jobs = _sweep("context_parallel.strategy", {"all_gather": 2.51234, "ring": 12345.678})
    report(tmp_path, [replace(job, compile_seconds=1234.5) for job in jobs])
    said = capsys.readouterr().out
    assert "\x1b" in said, "it took this for a terminal"
    table = re.sub(r"\x1b\[[\d;]*m", "", said).split("│\n└")[0].splitlines()
    assert len(table) == 5  # one line for each job, one of headings, two of the frame
    assert max(map(len, table)) <= columns
    assert " strategy " in table[1] and " 2.5123 " in table[3] and " 12345.6780 " in table[4]
