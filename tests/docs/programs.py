"""Ways to run what is not train.py: modules, the converter, TensorBoard, benchmarks, the shell."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from configs.command_line import main
from parallelism import make_mesh
from sweeps import sweep
from tests.data.conftest import toy_bpe
from tests.docs.pages import ROOT, Command
from training.modes import run


def in_bash(command: Command) -> None:
    """Bash runs it as it stands, beside train.py, with the Python of the tests."""
    python = f'python() {{ {shlex.quote(sys.executable)} "$@"; }}'
    here = f"ln -sf {shlex.quote(str(ROOT / 'train.py'))} train.py"
    script = f"{here}\n{python}\n{command.text}"
    subprocess.run(["bash", "-ec", script], check=True, capture_output=True)


def completes(command: Command) -> None:
    """The script that train.py prints is one that Bash takes, and a word is completed."""
    in_bash(command)
    asked = {"COMP_LINE": "python train.py optimi", "COMP_POINT": "22"}
    with mock.patch.dict("os.environ", asked):
        answer = _printed(lambda: main(run, sweep, ["-sc", "query=bash"]))
    assert "optimizer" in answer


def prints(page: str) -> Callable[[Command], None]:
    """The module prints what stands in `page`."""

    def way(command: Command) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the module is imported already
            printed = _printed(lambda: runpy.run_module(command.words[2], run_name="__main__"))
        shown = [line.strip() for line in (ROOT / page).read_text().splitlines()]
        assert "\n".join(line.strip() for line in printed.splitlines()) in "\n".join(shown)

    return way


def convert_gguf(command: Command) -> None:
    """The converter, on the file that inputs.py made."""
    importlib.import_module("tools.gguf_to_hf").convert(*map(Path, command.words[2:]))


def tensorboard(command: Command) -> None:
    """TensorBoard takes the arguments and finds a loss there; no server is started."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard import program

        board = program.TensorBoard()
        board.configure(argv=command.words)
    runs = EventMultiplexer().AddRunsFromDirectory(board.flags.logdir).Reload().Runs()
    assert any("learning/loss" in tags["scalars"] for tags in runs.values())


def benchmark(command: Command) -> None:
    """The benchmark's main, at the sizes and with the further arguments of BENCHMARKS."""
    module = importlib.import_module(command.words[2])
    sizes, arguments = BENCHMARKS[command.words[2]]
    figures = Path("figures.json").absolute()
    figures.unlink(missing_ok=True)
    with mock.patch.multiple(module, **sizes):
        module.main([*command.words[3:], *arguments, "--json", str(figures)])
    assert json.loads(figures.read_text())


def _open_here(overrides: list[str]) -> dict[str, float]:
    """What benchmarks/tokenizing.py runs in a process of its own, in this one."""
    code = importlib.import_module("benchmarks.tokenizing").OPEN
    with mock.patch("sys.argv", ["", *overrides]):
        return json.loads(_printed(lambda: exec(code, {})))


def _printed(call: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        call()
    return out.getvalue()


BENCHMARKS: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "benchmarks.experts": (
        {"LOADS": ("even",)},
        ["--rows", "16", "--width", "4", "--experts", "2", "--rounds", "1"],
    ),
    "benchmarks.step": (
        {
            "SHAPE": [
                "model.embed_dim=16", "model.num_layers=1", "model.num_heads=2",
                "model.num_kv_heads=1", "model.head_dim=8", "model.mlp_dim=16",
                "model.vocab_size=64", "data.source=synthetic", "data.seq_len=32",
                "data.batch=2", "compile_cache=null",
            ]
        },
        ["--rounds", "2"],
    ),
    "benchmarks.context_parallel": (
        {
            "STRATEGIES": ("ring",), "LAYOUTS": ("zigzag",), "NUM_LAYERS": 1,
            "LENGTHS": (64,), "DEGREES": (2,), "TIMED_CP": 2,
        },
        ["--length", "64", "--rounds", "1"],
    ),
    "benchmarks.reorder": (
        {
            "CPU_SHAPE": (1, 64, 2, 4), "CPU_SIZES": {"sharded": (4,)}, "ROUNDS": 1,
            "tpu_rows": lambda forms: [{"form": "left out"}],
        },
        [],
    ),
    "benchmarks.init_compile": (
        {"target_mesh": lambda target: make_mesh({"fsdp": -1})},
        ["--layers", "1", "--repeats", "1"],
    ),
    "benchmarks.tokenizing": (
        {"ROUNDS": 1, "open_once": _open_here, "train_tokenizer": lambda p: toy_bpe().save(str(p))},
        ["--megabytes", "1"],
    ),
}  # fmt: skip
