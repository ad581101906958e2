"""mode=train: a prepared run, its loop, and how it ended."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import jax

from configs.resume import permitted_changes
from configs.saved import write_config
from data import Dataset, batches
from parallelism import balance
from training.board import show_run
from training.checkpoint import Checkpoints
from training.console import Progress, announce
from training.feed import Feed
from training.loop import TrainLoop
from training.metrics import MetricsLog, read_metrics
from training.mirrors import Mirrors
from training.plan import rank_pairs
from training.profile import Profile
from training.rates import Rates
from training.run_lock import sole_writer
from training.setup import Setup
from training.signals import StopSignal
from training.start import make_ready


def train(setup: Setup, run_dir: Path, stop: StopSignal) -> int:
    """Trains to the last step; returns the exit code: 0, or that of the signal that ended it."""
    config, primary = setup.config, jax.process_index() == 0
    feed = Feed(setup.mesh, setup.rules, setup.layout)
    with contextlib.ExitStack() as stack:
        keep = stack.enter_context
        if primary:
            keep(sole_writer(run_dir))
        logged = read_metrics(run_dir)
        mirrors = keep(Mirrors(config, run_dir, logged))  # what is saved waits for no service
        checkpoints = keep(Checkpoints(run_dir / "checkpoints", config.checkpoint.keep))
        ready = make_ready(setup, feed, checkpoints, stop)
        at, last_step = ready.start, _last_step(config.train.steps, ready.train_data)
        if primary:
            for change in permitted_changes(config):
                announce("config", change)
            write_config(config, run_dir / "config.yaml")
        if at.step >= last_step:
            announce("done", f"step {at.step} of {last_step} is trained already")
            return 0
        metrics = keep(MetricsLog(run_dir, at.step, primary, mirrors))
        metrics.once({**ready.seconds, "balance": balance(rank_pairs(setup))})
        if primary:
            show_run(metrics, setup, ready.step, new=at.step == 0)
        loop = TrainLoop(
            setup=setup,
            step=ready.step,
            feed=feed,
            batches=keep(batches(ready.train_data, at.step, config.data.prefetch, feed)),
            train_data=ready.train_data,
            eval_data=ready.eval_data,
            checkpoints=checkpoints,
            metrics=metrics,
            console=keep(Progress(last_step, at.step, primary, config.checkpoint.every)),
            stop=stop,
            rates=Rates.of(setup),
            profile=keep(Profile(config.profile, run_dir)),
        )
        if at.step and "eval_loss" not in logged.get(at.step, {}):
            loop.evaluate_if_due(at, last_step)  # the run was stopped before it came to this
        loop.run(at, last_step)
        if at.step == last_step:
            metrics.finish()
    _say_where(at.step, last_step, run_dir, stop)
    return stop.exit_code


def _last_step(steps: int, train_data: Dataset) -> int:
    available = train_data.num_batches
    if available is None or available >= steps:
        return steps
    announce("data", f"data.epochs allows {available} steps, train.steps={steps} ends there")
    return available


def _say_where(step: int, last_step: int, run_dir: Path, stop: StopSignal) -> None:
    if stop.exit_code:
        announce("stopped", f"{stop.name} at step {step} of {last_step}")
    place = shlex.quote(_from_here(run_dir))
    announce("run", f"step {step} is saved in {place}")
    if step < last_step:
        announce("to go on", f"python train.py run.dir={place}")
    announce("watch", f"tensorboard --logdir {place}")


def _from_here(path: Path) -> str:
    """The path as one types it: relative to the working directory where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
