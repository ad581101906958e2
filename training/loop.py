"""The training loop: step, log, evaluate, checkpoint, stop cleanly."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax

from data import Dataset
from training.checkpoint import Checkpoints
from training.compile import Compiled, compile_eval_step
from training.console import Progress, announce
from training.evaluate import evaluate
from training.feed import Feed
from training.metrics import MetricsLog
from training.optimizer import hyperparameters
from training.phases import Phases
from training.profile import Profile
from training.rates import Rates, memory_values
from training.schedule import learning_rate
from training.setup import Setup
from training.signals import StopRequested, StopSignal, in_background
from training.start import Progressed


class NotFiniteError(ArithmeticError):
    """The loss or its gradient stopped being a number; parameters are those from before."""


@dataclass
class TrainLoop:
    """Drives the compiled step until the last one, a signal or a number that is not finite.

    A step's metrics are read after the next step was dispatched, so that devices never wait for
    the host; before a checkpoint, an evaluation or the end they are read at once. A step whose
    loss or gradient is not finite changes no parameter (the step sees to that) and ends the run.
    """

    setup: Setup
    step: Compiled
    feed: Feed
    batches: Iterator[dict[str, jax.Array]]
    train_data: Dataset
    eval_data: Dataset
    checkpoints: Checkpoints
    metrics: MetricsLog
    console: Progress
    stop: StopSignal
    rates: Rates
    profile: Profile
    clock: Phases = field(default_factory=Phases)
    eval_step: Compiled | None = None
    _unread: tuple[int, float, dict[str, Any]] | None = None
    _last_end: float = 0.0

    def run(self, at: Progressed, last_step: int) -> Progressed:
        """Trains from `at` to `last_step` or a signal; saves the last state either way."""
        self._start_step_time()
        while at.step < last_step and not self.stop.agreed():
            self._dispatch(at)
            if self._pauses(at.step, last_step):
                self._read_metrics(at)
                self._pause(at, last_step)
        self._read_metrics(at)
        self._save(at)
        return at

    def _dispatch(self, at: Progressed) -> None:
        with self.clock.phase("data_wait"):
            batch = next(self.batches)
        number = at.step + 1
        rate = self._learning_rate(number)
        numbers = hyperparameters(self.setup.config.optimizer, rate)
        with self.profile.before(number), self.clock.phase("device"):
            state, metrics = self.step.call(at.state, batch, numbers)
        self._read_metrics(at)
        self._unread = (number, rate, metrics)
        at.state, at.step = state, number

    def _learning_rate(self, step: int) -> float:
        config = self.setup.config
        return learning_rate(step, config.optimizer.lr, config.schedule, config.train.steps)

    def _read_metrics(self, at: Progressed) -> None:
        """Waits for the last dispatched step and logs it; raises NotFiniteError if it is not."""
        if self._unread is None:
            return
        number, rate, metrics = self._unread
        self._unread = None
        layers = metrics.pop("layers", None)
        with self.clock.phase("device"):
            values = jax.device_get(metrics)
        times = self._step_times()
        at.tokens += int(values["weight"])
        train = self.setup.config.train
        if number % train.log_every == 0 or number in (1, train.steps) or not values["finite"]:
            with self.clock.phase("logging"):
                progress = {"tokens": at.tokens, "epoch": self.train_data.epoch(number)}
                self._log(number, self._values(values, rate, times) | progress)
        with self.clock.phase("logging"):
            self._log_layers(number, layers)
        if self.profile.after(number):
            self._start_step_time()
        if not values["finite"] or not math.isfinite(values["param_norm"]):
            raise NotFiniteError(_not_finite(number, values))

    def _start_step_time(self) -> None:
        """What was done until now belongs to no step."""
        self.clock.take()
        self._last_end = time.perf_counter()

    def _step_times(self) -> dict[str, float]:
        """Seconds since the last step's end, and what they were spent on."""
        now, parts = time.perf_counter(), self.clock.take()
        seconds, self._last_end = now - self._last_end, now
        names = ("data_wait", "device", "logging")
        return {
            "step_time_seconds": seconds,
            **{f"{name}_seconds": parts.get(name, 0.0) for name in names},
        }

    def _values(
        self, values: dict[str, Any], rate: float, times: dict[str, float]
    ) -> dict[str, Any]:
        shown = ("loss", "grad_norm", "param_norm", "padding_fraction", "index_loss")
        return {
            **{name: float(values[name]) for name in shown if name in values},
            "learning_rate": rate,
            **times,
            **self.rates.values(float(values["weight"]), times["step_time_seconds"]),
            **memory_values(self.setup.mesh.local_devices),
        }

    def _log(self, number: int, values: dict[str, Any]) -> None:
        self.metrics.write(number, values)
        self.console.step(number, values)

    def _log_layers(self, number: int, layers: Any) -> None:
        stats = self.setup.layer_stats
        if stats is None or not stats.due(number):
            return
        measured = jax.device_get(layers)
        self.metrics.write(number, stats.scalars(number, measured))
        for histogram in stats.histograms(number, measured):
            self.metrics.summary(histogram, number)

    def _pauses(self, step: int, last_step: int) -> bool:
        every = (self.setup.config.train.eval_every, self.setup.config.checkpoint.every)
        return step == last_step or any(n and step % n == 0 for n in every)

    def _pause(self, at: Progressed, last_step: int) -> None:
        """Saves first, then evaluates: what an evaluation might lose is saved."""
        if at.step % self.setup.config.checkpoint.every == 0 or at.step == last_step:
            self._save(at)
        self.evaluate_if_due(at, last_step)
        self._start_step_time()

    def evaluate_if_due(self, at: Progressed, last_step: int) -> None:
        """Evaluates after the last step and every train.eval_every steps."""
        every = self.setup.config.train.eval_every
        if at.step == last_step or (every and at.step % every == 0):
            self._evaluate(at)

    def _save(self, at: Progressed) -> None:
        if at.step == 0:
            return
        with self.clock.phase("checkpoint"):
            metadata = {"tokens": at.tokens, "data": self.train_data.fingerprint}
            saved = self.checkpoints.save(at.step, at.state, metadata)
        seconds = self.clock.take()["checkpoint"]
        if saved:
            self.metrics.write(at.step, {"checkpoint_seconds": seconds})

    def _evaluate(self, at: Progressed) -> None:
        if not self.eval_data.num_batches:
            return
        if self.eval_step is None:
            self.eval_step = self._compile_eval()
            if self.eval_step is None:
                return
        step, parameters = self.eval_step, at.state.parameters
        with self.clock.phase("eval"):
            values = evaluate(step, parameters, self.eval_data, self.feed, self.stop)
        if values:
            seconds = {"eval_seconds": self.clock.take()["eval"]}
            self.metrics.write(at.step, {**values, **seconds})
            self.console.evaluated(at.step, values)

    def _compile_eval(self) -> Compiled | None:
        future = in_background(lambda: compile_eval_step(self.setup, self.feed))
        try:
            compiled = self.stop.wait(future)
        except StopRequested:  # the loop sees the signal as well, and the state is saved
            return None
        announce("compile", f"eval step in {compiled.seconds:.1f} s")
        self.metrics.once({"compile_eval_step_seconds": compiled.seconds})
        return compiled


def _not_finite(step: int, values: dict[str, Any]) -> str:
    found = " ".join(f"{n}={float(values[n])}" for n in ("loss", "grad_norm", "param_norm"))
    kept = "the update was not applied" if not values["finite"] else "that state is not saved"
    return (
        f"step {step}: {found}: not finite; {kept}, and the checkpoints so far stay. A lower "
        "optimizer.lr, a smaller optimizer.clip_norm or a look at this step's data may help"
    )
