"""Before the first step: data opened, step compiled, state made or restored, side by side."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import jax

from configs import Config
from configs.words import counted
from data import Dataset, fingerprint_changes, open_splits
from model.lora import factors_only, joined_by_name
from parallelism import InitProgram, plan_init
from training.checkpoint import CheckpointError, Checkpoints, Restored
from training.compile import Compiled, compile_train_step
from training.console import announce
from training.feed import Feed
from training.imported import read_folder
from training.plan import num_parameters
from training.setup import Setup
from training.signals import StopSignal, in_background
from training.state import TrainState

log = logging.getLogger(__name__)

_REST = "rest of the train state"


@dataclass
class Progressed:
    """How far a run is: its state, finished steps and scored tokens. What a checkpoint holds."""

    state: TrainState
    step: int
    tokens: int


@dataclass(frozen=True)
class Ready:
    """What the loop needs and what it took: `seconds` has metric names."""

    start: Progressed
    step: Compiled
    train_data: Dataset
    eval_data: Dataset
    seconds: dict[str, float]


def make_ready(setup: Setup, feed: Feed, checkpoints: Checkpoints, stop: StopSignal) -> Ready:
    """Opens the data, compiles the step and makes the state, each in a thread of its own.

    Raises DataError or CheckpointError for what is refused, StopRequested if a signal comes.
    """
    config = setup.config
    check_resume(config, checkpoints)
    data = in_background(lambda: open_splits(config.data, config.model.vocab_size))
    state = in_background(lambda: _make_state(setup, checkpoints))
    step = in_background(lambda: compile_train_step(setup, feed))
    train_data, eval_data = stop.wait(data)
    announce("data", _describe(train_data))
    start, seconds, saved_data = stop.wait(state)
    _refuse_other_data(saved_data, train_data)
    compiled = stop.wait(step)
    announce("compile", f"train step in {compiled.seconds:.1f} s")
    seconds["compile_train_step_seconds"] = compiled.seconds
    return Ready(start, compiled, train_data, eval_data, seconds)


def check_resume(config: Config, checkpoints: Checkpoints) -> None:
    """Refuses to start anew over saved checkpoints, or to resume without any."""
    steps, resume = checkpoints.steps(), config.checkpoint.resume
    if steps and resume == "never":
        raise CheckpointError(
            f"checkpoint.resume=never, but {checkpoints.directory} holds step {steps[-1]}; "
            "choose another run.dir to start anew, or checkpoint.resume=auto to go on"
        )
    if not steps and resume == "required":
        raise CheckpointError(
            f"checkpoint.resume=required, but {checkpoints.directory} holds no checkpoint; "
            "checkpoint.resume=auto would start from step 0"
        )


def init_plan(setup: Setup) -> InitProgram:
    """The programs that draw the train state, or, with init.from_hf, what is not read from there.

    One plan, so that moments share programs with parameters, whose paths stay what they are.
    """
    specs, options = setup.specs, setup.config.init
    drawn = factors_only(specs.parameters) if options.from_hf else specs.parameters
    return plan_init(
        {**drawn, _REST: (specs.step, specs.optimizer)},
        setup.mesh,
        setup.rules,
        strategy=options.strategy,
        stack_bytes=options.stack_bytes,
    )


def new_state(setup: Setup) -> tuple[TrainState, dict[str, float]]:
    """Draws the train state by the configured strategy; returns the seconds that it took too.

    With init.from_hf the parameters are read from there, and nothing is drawn.
    """
    config, start = setup.config, time.perf_counter()
    indexer = config.model.indexer
    if indexer.num_heads and not indexer.loss and config.init.from_hf is None:
        log.warning(
            "model.indexer.loss=0: the indexer is drawn at random and not trained, so it chooses "
            "keys at random; model.indexer.loss=1 trains it, init.from_hf brings a trained one, "
            "and model.indexer.num_heads=0 attends to every key"
        )
    plan = init_plan(setup)
    parameters = plan.run(jax.random.key(config.seed))
    step, optimizer = parameters.pop(_REST)
    if config.init.from_hf is not None:
        parameters = joined_by_name(parameters, read_folder(setup))
    seconds = {
        "compile_init_seconds": plan.compile_seconds,
        "init_seconds": time.perf_counter() - start,
    }
    return TrainState(step, parameters, optimizer), seconds


def _make_state(
    setup: Setup, checkpoints: Checkpoints
) -> tuple[Progressed, dict[str, float], str | None]:
    """The restored or the new state, its seconds, and the data that a restored one was fed."""
    restored, seconds = restore(setup.abstract_state(), checkpoints)
    if restored is not None:
        announce("restore", f"step {restored.step} in {seconds:.1f} s")
        start = Progressed(restored.state, restored.step, restored.metadata["tokens"])
        return start, {"restore_seconds": seconds}, restored.metadata["data"]
    state, init = new_state(setup)
    announce(
        "init",
        f"{num_parameters(setup.specs.parameters):,} parameters, "
        f"{setup.config.init.from_hf or setup.config.init.strategy} in "
        f"{init['init_seconds']:.1f} s",
    )
    return Progressed(state, 0, 0), init, None


def restore(
    abstract: Any, checkpoints: Checkpoints, partial: bool = False
) -> tuple[Restored | None, float]:
    """The newest readable checkpoint, if any, and the seconds that reading it took."""
    start = time.perf_counter()
    restored = checkpoints.restore_latest(abstract, partial)
    return restored, time.perf_counter() - start


def _refuse_other_data(saved: str | None, train_data: Dataset) -> None:
    changes = fingerprint_changes(saved, train_data.fingerprint) if saved else []
    if changes:
        raise CheckpointError(
            "the data is not what this run was trained on so far: "
            + "; ".join(changes)
            + "; choose another run.dir to start anew"
        )


def _describe(dataset: Dataset) -> str:
    stats = dataset.stats
    text = ", ".join(
        [
            counted(stats.documents, "document"),
            counted(stats.tokens, "token"),
            counted(stats.rows, "row"),
        ]
    )
    if stats.empty_documents:
        text += f", {counted(stats.empty_documents, 'empty document')} left out"
    if stats.invalid_bytes:
        text += f", {stats.invalid_bytes:,} bytes are not UTF-8 (first: {stats.first_invalid})"
    return text
