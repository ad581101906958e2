"""One training process group per run directory at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RunInUseError(ValueError):
    """Another process trains in this run directory."""


@contextmanager
def sole_writer(run_dir: str | Path) -> Iterator[None]:
    """Holds `run_dir` for the block; raises RunInUseError, naming the process, if it is taken.

    Two processes that log and save in one directory would mix two histories into one. The lock is
    the operating system's (flock on `run_dir`/.lock) and goes with the process, however it ends.
    On a file system without such locks nothing is held. Process 0 of a run takes it.
    """
    with (Path(run_dir) / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunInUseError(
                f"run.dir={run_dir} is in use by {file.read().strip() or 'another process'}; "
                "wait for it, stop it, or take another run.dir"
            ) from None
        except OSError:
            yield
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
