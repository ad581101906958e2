"""What the terminal says: one line a step, a live view on a tty; train.log keeps all of it.

    with log_to(run_dir, primary=jax.process_index() == 0):
        announce("mesh", "data=1 fsdp=4 context=2 tensor=1, 8 CPU devices")
        with Progress(total_steps=200, start_step=0) as progress:
            progress.step(1, {"loss": 5.5, "grad_norm": 1.2, "tokens_per_second": 1e4, ...})
            progress.evaluated(1, {"eval_loss": 5.4})

Everything goes through the logger "foldtext". Warnings and errors of any logger, ours or a
library's, reach the terminal (stderr) and train.log too.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("foldtext")

# Field of the line, metric it shows, format.
_STEP_FIELDS = (
    ("loss", "loss", ".4f"),
    ("grad_norm", "grad_norm", ".3f"),
    ("lr", "learning_rate", ".3e"),
    ("tokens/s", "tokens_per_second", ".0f"),
    ("step_s", "step_time_seconds", ".3f"),
    ("data_wait_s", "data_wait_seconds", ".3f"),
)
_EVAL_FIELDS = (
    ("eval_loss", "eval_loss", ".4f"),
    ("eval_perplexity", "eval_perplexity", ".2f"),
    ("eval_tokens", "eval_tokens", ".0f"),
)
_FILE_ONLY = {"terminal": False}


def announce(phase: str, detail: str) -> None:
    """One line that names the phase which now begins: a hang is located by the last line."""
    log.info("%s: %s", phase, detail)


@contextmanager
def log_to(
    run_dir: str | Path,
    primary: bool = True,
    process: int = 0,
    refusals: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Logs to the terminal and to `run_dir`/train.log while the block runs; leaves no handler.

    An exception that leaves the block is written to train.log, with its traceback unless it is
    one of `refusals`, and raised on. A process that is not the primary one writes no file and
    says nothing but errors, on stderr.
    """
    handlers: list[logging.Handler] = _primary(Path(run_dir)) if primary else [_other(process)]
    with _handling(handlers):
        try:
            yield
        except refusals as refusal:
            log.error("refused: %s", refusal, extra=_FILE_ONLY)
            raise
        except (Exception, KeyboardInterrupt):
            log.exception("the run failed", extra=_FILE_ONLY)
            raise


def to_terminal() -> AbstractContextManager[None]:
    """Logs to the terminal alone while the block runs: for modes that leave no trace on disk."""
    return _handling([_Terminal(logging.INFO)])


@contextmanager
def _handling(handlers: list[logging.Handler]) -> Iterator[None]:
    root, level = logging.getLogger(), log.level
    log.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for handler in handlers:
        handler.addFilter(_ours_or_warning)
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        logging.captureWarnings(False)
        log.setLevel(level)


def _ours_or_warning(record: logging.LogRecord) -> bool:
    """Libraries say nothing below a warning, whatever level others gave the root logger."""
    return record.name == log.name or record.levelno >= logging.WARNING


class Progress:
    """The lines of a training loop, or their live view where stdout is a terminal.

    Lines read `step 12/200 loss=3.2012 grad_norm=0.981 ... eta=0:01:23`; a field whose value is
    missing is left out. train.log has the lines in both cases.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        primary: bool = True,
        checkpoint_every: int | None = None,
    ) -> None:
        self._total = total_steps
        self._start_step = start_step
        self._start = time.monotonic()
        live = primary and sys.stdout.isatty()
        self._live = _live_view(total_steps, start_step, checkpoint_every) if live else None

    def step(self, step: int, values: Mapping[str, Any]) -> None:
        """Shows a finished step; `values` as given to MetricsLog.write."""
        shown, eta = _fields(_STEP_FIELDS, values), self._eta(step)
        line = f"step {step}/{self._total} {shown} eta={eta}"
        log.info(line, extra=_FILE_ONLY if self._live else None)
        if self._live:
            self._live.update(step, values, eta)

    def evaluated(self, step: int, values: Mapping[str, Any]) -> None:
        """Shows an evaluation made after `step`."""
        log.info("eval %d/%d %s", step, self._total, _fields(_EVAL_FIELDS, values))

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def _eta(self, step: int) -> str:
        done = max(step - self._start_step, 1)
        seconds = int((time.monotonic() - self._start) / done * (self._total - step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _fields(fields: tuple[tuple[str, str, str], ...], values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={float(values[key]):{style}}"
        for name, key, style in fields
        if values.get(key) is not None
    )


def _live_view(total_steps: int, start_step: int, checkpoint_every: int | None) -> Any:
    from training.live import LiveView

    return LiveView(total_steps, start_step, checkpoint_every)


class _Terminal(logging.Handler):
    """Prints to whatever sys.stdout and sys.stderr are now (the view and pytest swap them).

    A terminal that cannot show a character or a pipe that nobody reads ends no run.
    """

    def __init__(self, level: int, prefix: str = "") -> None:
        super().__init__(level)
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "terminal", True):
            return
        warning = record.levelno >= logging.WARNING
        level = f"{record.levelname.lower()}: " if warning else ""
        stream = sys.stderr if warning else sys.stdout
        # Tracebacks of libraries that log and raise are for train.log alone.
        text = f"{self._prefix}{level}{record.getMessage()}"
        encoding = getattr(stream, "encoding", None) or "utf-8"
        try:
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _primary(run_dir: Path) -> list[logging.Handler]:
    run_dir.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(run_dir / "train.log", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return [file, _Terminal(logging.INFO)]


def _other(process: int) -> logging.Handler:
    return _Terminal(logging.ERROR, prefix=f"[process {process}] ")
