"""A trace of a few steps for TensorBoard's profile plugin (xprof)."""

from __future__ import annotations

from pathlib import Path

import jax

from configs.schema import ProfileConfig
from training.console import announce


class Profile:
    """Traces steps `profile.start` to `profile.start + profile.steps - 1`; a context manager.

    The trace lies in RUN/plugins/profile, where TensorBoard looks for it. Every process traces its
    own devices. A run that is resumed past the start traces nothing.
    """

    def __init__(self, config: ProfileConfig, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._first = config.start
        self._last = (config.start or 0) + config.steps - 1
        self._tracing = False

    def before(self, step: int) -> jax.profiler.StepTraceAnnotation:
        """Starts the trace if it is time; the annotation belongs around the step's dispatch."""
        if step == self._first:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every call of every library would hide the steps
            jax.profiler.start_trace(self._run_dir, profiler_options=options)
            self._tracing = True
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def after(self, step: int) -> bool:
        """Ends the trace after its last step; True if it did, which may take seconds."""
        if not self._tracing or step < self._last:
            return False
        self._stop()
        announce("profile", f"steps {self._first} to {step} in {self._run_dir}/plugins/profile")
        return True

    def _stop(self) -> None:
        self._tracing = False
        jax.profiler.stop_trace()

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tracing:
            self._stop()
