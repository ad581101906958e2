"""What `mode=` chooses between, and what every mode shares: devices, log, exit code."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

from configs import Config, ConfigError
from configs.words import counted
from data import DataError, open_data, open_tokenizer
from model import HFError
from parallelism import UnsupportedError
from training.checkpoint import CheckpointError, Checkpoints
from training.compile import compile_eval_step
from training.compile_only import compile_only
from training.console import announce, log, log_to, to_terminal
from training.devices import start_devices
from training.evaluate import evaluate
from training.feed import Feed
from training.folder_model import completed, import_lines
from training.generate import generate, read_prompts, shown
from training.imported import (
    read_folder,
    starts_from_folder,
    write_folder,
)
from training.loop import NotFiniteError
from training.plan import fallback_lines, print_plan
from training.run_lock import RunInUseError
from training.setup import Setup, open_setup
from training.signals import StopSignal
from training.start import restore
from training.train import train

REFUSED, FAILED = 2, 1
_REFUSALS = (
    ConfigError, DataError, CheckpointError, HFError, RunInUseError, UnsupportedError,
)  # fmt: skip


def run(config: Config) -> int:
    """Does what config.mode says; returns the process's exit code.

    0 done, 1 failed, 2 an input was refused, 143 or 130 stopped by SIGTERM or SIGINT with the
    state saved. Unexpected errors are logged with their traceback and raised.
    """
    try:
        config = completed(config)
        if config.mode == "plan":
            with to_terminal():
                _announce_import(config)
            print_plan(config)
            return 0
    except _REFUSALS as error:
        with to_terminal():
            log.error("%s", error)
        return REFUSED
    with StopSignal() as stop:
        devices = start_devices(config)
        stop.install()  # jax.distributed took SIGTERM for itself
        with _log(config):
            try:
                _announce_import(config)
                setup = open_setup(config, devices)
                _announce_mesh(setup)
                return _MODES[config.mode](setup, Path(config.run.dir), stop)
            except _REFUSALS as error:
                log.error("%s", error)
                return REFUSED
            except NotFiniteError as error:
                log.error("%s", error)
                return FAILED


def _announce_import(config: Config) -> None:
    for line in import_lines(config):
        announce("import", line)


def _announce_mesh(setup: Setup) -> None:
    sizes = " ".join(f"{axis}={size}" for axis, size in setup.mesh.shape.items())
    kind = setup.mesh.devices.flat[0].device_kind
    announce("mesh", f"{sizes}: {counted(setup.mesh.size, f'{kind} device')}")
    for line in fallback_lines(setup):
        announce("mesh", line)


def _log(config: Config) -> AbstractContextManager[None]:
    if config.mode == "train":
        process = jax.process_index()
        return log_to(config.run.dir, process == 0, process)
    return to_terminal()


def _saved_parameters(setup: Setup, run_dir: Path) -> tuple[int, Any]:
    """Step and parameters of the newest readable checkpoint; without a run, of init.from_hf."""
    if starts_from_folder(setup.config):
        if setup.config.adapter.name != "none":
            raise ConfigError(["adapter=lora: its factors are in a run, which run.dir=RUN names"])
        return 0, read_folder(setup)
    with Checkpoints(run_dir / "checkpoints") as checkpoints:
        restored, _ = restore(
            {"parameters": setup.abstract_state().parameters}, checkpoints, partial=True
        )
    if restored is None:
        raise CheckpointError(f"{run_dir} holds no checkpoint yet; train it first")
    return restored.step, restored.state["parameters"]


def _evaluate(setup: Setup, run_dir: Path, stop: StopSignal) -> int:
    dataset = open_data(setup.config.data, "eval", setup.config.model.vocab_size)
    step, parameters = _saved_parameters(setup, run_dir)
    feed = Feed(setup.mesh, setup.rules, setup.layout)
    values = evaluate(compile_eval_step(setup, feed), parameters, dataset, feed, stop)
    if stop.requested:
        return stop.exit_code
    if values is None:
        raise DataError("the eval split is empty; data.eval_fraction=0.02 would hold some out")
    loss, tokens = values["eval_loss"], values["eval_tokens"]
    perplexity = math.exp(min(loss, 700.0))
    announce("eval", f"step={step} eval_loss={loss!r} {perplexity=:.4f} eval_tokens={tokens:.0f}")
    return 0


def _generate(setup: Setup, run_dir: Path, stop: StopSignal) -> int:
    options, config = setup.config.generate, setup.config
    tokenizer = open_tokenizer(config.data, config.model.vocab_size)
    texts = read_prompts(options)
    try:
        prompts = [[*tokenizer.prefix, *tokenizer.encode(text)] for text in texts]
    except DataError as error:
        key = "generate.prompts" if options.prompts else "generate.prompt"
        raise DataError(f"{key}: {error}") from None
    if not all(prompts):
        raise ConfigError(["generate.prompt is empty; give it at least one token to continue"])
    _, parameters = _saved_parameters(setup, run_dir)
    found = generate(setup.model, parameters, prompts, options, tokenizer, stop)
    for text, tokens in zip(texts, found, strict=False):
        answer = tokenizer.decode(tokens)
        print(shown(text, answer) if options.prompts else text + answer, flush=True)
    return stop.exit_code


def _export(setup: Setup, run_dir: Path, stop: StopSignal) -> int:
    step, parameters = _saved_parameters(setup, run_dir)
    path = write_folder(setup, parameters, run_dir)
    loader = "peft" if setup.config.export.form == "peft" else "transformers"
    announce("export", f"step {step} is in {path}; {loader} loads it")
    return stop.exit_code


_MODES: dict[str, Callable[[Setup, Path, StopSignal], int]] = {
    "train": train,
    "compile": compile_only,
    "eval": _evaluate,
    "generate": _generate,
    "export": _export,
}
