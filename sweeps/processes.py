"""Jobs in fresh processes: nothing leaks from one to the next, and every device is free again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any

from sweeps.job import TERMINAL, Job, Record, register

_POLL_SECONDS = 0.05
_KEPT_LINES = 60  # of what a process said on stderr, for the log of a job that has none
_STOPS = {128 + signal.SIGINT: "stopped by SIGINT", 128 + signal.SIGTERM: "stopped by SIGTERM"}


def run_jobs(jobs: Sequence[Job], at_once: int = 1) -> int:
    """Runs jobs that are not done yet, `at_once` at a time; returns 0, 130 or 143.

    SIGINT and SIGTERM are passed on to the running jobs, which save their state; then no other
    starts. Raises ConfigError, before any runs, where a directory belongs to another job.
    """
    waiting = deque(zip(jobs, register(jobs), strict=True))
    same = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    running: list[_Process] = []
    with _passing_on(running) as stop:
        while running or (waiting and not stop.number):
            while waiting and len(running) < at_once and not stop.number:
                job, record = waiting.popleft()
                if record.is_done:
                    _say(f"job {job.number} is done already")
                    continue
                own = " ".join(word for word in job.overrides if word not in same)
                _say(f"job {job.number} starts: {own} in {job.folder}")
                running.append(_Process.start(job, record, alone=at_once == 1))
            ended = [process for process in running if process.has_ended()]
            for process in ended:
                running.remove(process)
                process.conclude()
                stopped = process.exit_code if process.exit_code in _STOPS else 0
                stop.number = stop.number or max(stopped - 128, 0)
            if running and not ended:
                time.sleep(_POLL_SECONDS)
    return 128 + stop.number if stop.number else 0


@dataclass
class _Process:
    """A running job."""

    job: Job
    record: Record
    popen: subprocess.Popen[str]
    alone: bool
    started: float = field(default_factory=time.monotonic)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    readers: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def start(cls, job: Job, record: Record, alone: bool) -> _Process:
        """Starts the job's command; one that runs beside others speaks to FOLDER/terminal.log.

        So does one that has no train.log, and to the terminal too. A job has a process group of
        its own: the terminal's Ctrl-C reaches it once, through us.
        """
        both = alone and job.mode != "train"
        with ExitStack() as stack:
            log = None if alone else stack.enter_context((job.folder / TERMINAL).open("a"))
            popen = subprocess.Popen(
                job.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if both else log,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                process_group=0,
                cwd=job.cwd,
            )
        process = cls(job, record, popen, alone)
        process._start_reading(process._read_errors, popen.stderr)
        if both:
            process._start_reading(process._read_output, popen.stdout)
        return process

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 and the number of the signal that killed it."""
        code = self.popen.poll()
        return 0 if code is None else code if code >= 0 else 128 - code

    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    def conclude(self) -> None:
        """Writes down how the job ended, in its own log too if that does not know yet."""
        for reader in self.readers:
            reader.join(timeout=5)
        minutes = (time.monotonic() - self.started) / 60
        self.record.after(minutes * 60, self.exit_code).write(self.job.folder)
        name = f"job {self.job.number}"
        if self.exit_code == 0:
            _say(f"{name} is done in {minutes:.1f} min")
        elif self.exit_code in _STOPS:
            _say(f"{name} is {_STOPS[self.exit_code]}")
        else:
            self._complete_log()
            _say(f"{name} failed with exit code {self.exit_code}; see {self.job.folder}/train.log")

    def _complete_log(self) -> None:
        log = self.job.folder / "train.log"
        known = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        unknown = [line for line in self.said if line.rstrip() not in known]
        with log.open("a", encoding="utf-8") as file:
            file.writelines([*unknown, f"the process ended with exit code {self.exit_code}\n"])

    def _start_reading(self, read: Callable[[IO[str]], None], stream: IO[str] | None) -> None:
        self.readers.append(threading.Thread(target=read, args=(stream,), daemon=True))
        self.readers[-1].start()

    def _read_errors(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.said.append(line)
                prefix = "" if self.alone else f"job {self.job.number}: "
                print(f"{prefix}{line}", end="", file=sys.stderr, flush=True)

    def _read_output(self, stream: IO[str]) -> None:
        with stream, (self.job.folder / TERMINAL).open("a", encoding="utf-8") as log:
            for line in stream:
                print(line, end="", flush=True)
                log.write(line)


@dataclass
class _Stop:
    number: int = 0


@contextmanager
def _passing_on(running: Sequence[_Process]) -> Iterator[_Stop]:
    """Hands SIGINT and SIGTERM to the running jobs while the block runs, and notes the first."""
    stop = _Stop()

    def receive(number: int, frame: FrameType | None) -> None:
        stop.number = stop.number or number
        for process in running:
            if process.popen.poll() is None:
                process.popen.send_signal(number)

    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        old = {n: signal.signal(n, receive) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, action in old.items():
            signal.signal(number, action)


def _say(line: str) -> None:
    print(line, flush=True)
