"""Ways to run `python train.py ...` in this process."""

from __future__ import annotations

import contextlib
import io
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import jax

from configs import Config, load
from configs.command_line import main
from configs.saved import NAME
from data import open_splits
from sweeps import sweep
from sweeps.job import Job, register
from tests.docs.pages import ROOT, Command
from training import compile as compiling
from training.feed import Feed
from training.folder_model import with_model_of_folder
from training.modes import run
from training.setup import open_setup

SHAPES = {
    "model.num_layers": "1",
    "model.embed_dim": "16",
    "model.mlp_dim": "16",
    "model.num_heads": "4",
    "model.num_kv_heads": "4",
    "model.head_dim": "4",
}
SIZES = {
    "data.seq_len": "64",
    "data.batch": "8",
    "data.eval_rows": "8",
    "attention.block_size": "8",
}
STEPS = ("train.steps", "schedule.total_steps")
ACCEPTED = 99
FEW = 30  # steps that are not made fewer


def as_it_stands(command: Command) -> None:
    """The command itself; what the page shows below it is said."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _ends_well(command, command.words[2:])
    assert_said(command, out.getvalue())


def planned(command: Command) -> None:
    """A compilation for absent devices, as far as that needs no compiler for them."""
    load(command.words[2:])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _ends_well(command, ["mode=plan" if w == "mode=compile" else w for w in command.words[2:]])
    assert "GiB" in out.getvalue()


def show(command: Command) -> None:
    """The command itself, which says something and runs nothing."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _ends_well(command, command.words[2:])
    assert out.getvalue().strip()


def small(command: Command) -> None:
    """The command on as many devices as it asks for, smaller and with a hundredth of its steps."""
    _ends_well(command, smaller(command.words[2:]))


def traced(command: Command) -> None:
    """A training up to its compilation: config, mesh, data and the traced step, in full size."""
    config = with_model_of_folder(load([*command.words[2:], "run.dir=unused"]))
    setup = open_setup(config, devices_of(config))
    train_data, _ = open_splits(config.data, config.model.vocab_size)
    assert train_data.batch(0)["tokens"].shape == (config.data.batch, config.data.seq_len)
    with mock.patch.object(compiling, "_compile", _trace):
        compiling.compile_train_step(setup, Feed(setup.mesh, setup.rules, setup.layout))


def refused(command: Command) -> None:
    """What the page shows below the command is said; exit code 2, or the one in its comment."""
    code, said = what_is_said(command)
    assert code == code_of(command), said
    assert_said(command, said)


def assert_said(command: Command, said: str) -> None:
    """The lines below the command are in `said`, in this order; ... stands for anything."""
    said = " ".join(said.split())
    shown = " ".join(" ".join(command.output).split())
    for part in filter(None, re.split(r" ?\.\.\.(?: |$)", shown)):
        assert part in said, f"{part!r} is not said:\n{said}"
        said = said.partition(part)[2]


def code_of(command: Command) -> int:
    """The exit code in the command's comment, or 2."""
    named = re.search(r"# exit code (\d+)", command.text)
    return int(named[1]) if named else 2


def what_is_said(command: Command) -> tuple[int, str]:
    """Exit code and all that is said, on one line, where a single CPU device is here.

    A command that is not refused at once runs at the sizes of `smaller`; what is to be refused is
    not compiled. The working directory is called /home/me. A package that the message misses is
    missing.
    """
    names = () if code_of(command) == 1 else ("compile_train_step", "new_state")
    gone = re.findall(r"needs the package (\w+)", " ".join(command.output))
    words = command.words[2:]
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(out),
        mock.patch.dict("sys.modules", dict.fromkeys(_with_submodules(gone))),
        contextlib.ExitStack() as nothing_compiled,
        mock.patch("training.modes.start_devices", lambda config: jax.devices()[:1]),
    ):
        for name in names:
            nothing_compiled.enter_context(mock.patch(f"training.start.{name}", _not_refused))
        code = main(lambda config: ACCEPTED, sweep, words)
        if code == ACCEPTED:
            code = main(run, sweep, smaller(words))
    said = out.getvalue().replace(str(Path.cwd()), "/home/me")
    return code, " ".join(said.split())


def _with_submodules(packages: list[str]) -> list[str]:
    """The packages, and what another test has imported of them: it would be found on its own."""
    loaded = [name for name in sys.modules if name.partition(".")[0] in packages]
    return [*packages, *loaded]


def sweep_here(command: Command) -> None:
    """The sweep without its processes: first and last job check their configs, all leave a loss."""
    with mock.patch("sweeps.processes.run_jobs", _leave_losses):
        assert main(run, sweep, command.words[2:]) == 0


def sweep_in_processes(command: Command) -> None:
    """The sweep with its launcher; a job is a process that checks its config."""
    script = Path("job.py").absolute()
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from configs import load\n"
        "load([word for word in sys.argv[1:] if '=' in word])\n"
    )
    with mock.patch("sweeps.job.TRAIN", script):
        assert main(run, sweep, command.words[2:]) == 0


def smaller(words: Sequence[str]) -> list[str]:
    """The overrides at sizes at which a run takes seconds; a run that is there keeps its own."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    is_new = not (Path(given.get("run.dir", "none")) / NAME).exists()
    changed = {"generate.tokens": "4"}
    if is_new:
        changed |= SIZES if "init.from_hf" in given else SIZES | SHAPES
    if given.get("mode", "train") == "train":
        changed |= {key: _fewer(given[key]) for key in STEPS if key in given}
        changed |= {"train.steps": "2"} if is_new and "train.steps" not in given else {}
    kept = [word for word in words if word.split("=", 1)[0] not in changed]
    return [*kept, *(f"{key}={value}" for key, value in changed.items())]


def devices_of(config: Config) -> list[jax.Device]:
    """As many of this process's devices as the config asks for."""
    mesh = config.mesh
    axes = (mesh.data, mesh.fsdp, mesh.expert, mesh.context, mesh.tensor)
    return jax.devices()[: mesh.simulate or math.prod(max(size, 1) for size in axes)]


def _fewer(steps: str) -> str:
    return steps if int(steps) <= FEW else str(max(2, int(steps) // 100))


def _ends_well(command: Command, words: Sequence[str]) -> None:
    code = main(run, sweep, words)
    assert code == 0, f"{command}: exit code {code}, run as {' '.join(words)}"


def _not_refused(*_: object) -> None:
    raise AssertionError("the command was not refused before anything is compiled")


def _trace(jitted: jax.stages.Wrapped, *arguments: object) -> None:
    jitted.trace(*arguments)


def _leave_losses(jobs: Sequence[Job], at_once: int) -> int:
    load(jobs[0].words())
    load(jobs[-1].words())
    for job, record in zip(jobs, register(jobs), strict=True):
        (job.folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        record.after(1.0, 0).write(job.folder)
    return 0
