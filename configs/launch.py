"""Calling Hydra, and calling what it launches."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from configs.compose import HOME
from configs.errors import ConfigError
from configs.schema import Config

REFUSED, FAILED, INTERRUPTED = 2, 1, 130
Run = Callable[[Config], int]


def call_hydra(task: Callable[[Any], Any], overrides: Sequence[str], flags: Sequence[str]) -> int:
    """Has Hydra do its part, `task` included, as if these words stood on the command line.

    Returns 0, or the exit code with which Hydra or the task left.
    """
    import hydra

    def entry(composed: Any) -> Any:
        return task(composed)

    launch = hydra.main(version_base="1.3", config_path=str(HOME), config_name="config")(entry)
    with _restored():
        sys.argv = [sys.argv[0], *overrides, *flags]
        try:
            launch()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except KeyboardInterrupt:  # of a launcher that does not take signals itself
            return INTERRUPTED
    return 0


@contextmanager
def _restored() -> Iterator[None]:
    """Puts back what Hydra changes in the process: the words, and the root logger."""
    root = logging.getLogger()
    words, handlers, level = sys.argv, list(root.handlers), root.level
    try:
        yield
    finally:
        sys.argv, root.handlers = words, handlers
        root.setLevel(level)


def guarded(run: Run, config: Config) -> int:
    """The exit code of `run`, whatever it raises."""
    try:
        return run(config)
    except ConfigError as error:
        print(error.report(), file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        return FAILED
