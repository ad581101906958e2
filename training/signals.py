"""SIGTERM and SIGINT stop a run between two steps, on all processes after the same step.

    with StopSignal() as stop:                          # after jax.distributed.initialize
        compiled = stop.wait(in_background(compile))    # raises StopRequested: nothing to save yet
        for step in ...:
            ...one step...
            if stop.agreed():                           # the same answer on every process
                break
        save
    leave(stop.exit_code)                               # 143, 130 or 0

The first signal asks for a stop; a second SIGINT raises KeyboardInterrupt at once. Within work
that only this process does poll `stop.requested`. Catch StopRequested last, for `leave`.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 0.1
_background: list[threading.Thread] = []


class StopRequested(SystemExit):
    """A signal came while the run had nothing to save yet; exits with `code`, 143 or 130."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class StopSignal:
    """Turns SIGTERM and SIGINT into a flag while its block runs; puts the old actions back after.

    JAX's own SIGTERM action (installed by jax.distributed.initialize, with which the process no
    longer ends and only `reached_preemption_sync_point` tells) is replaced; call `install` again
    if JAX is initialised inside the block. Outside the main thread, where Python allows no signal
    handlers, signals keep their old meaning.
    """

    def __init__(self) -> None:
        self._number = 0  # the first signal that this process got
        self._agreed = 0  # the one that all processes know of
        self._old: dict[int, Any] = {}
        self._pending: Any = None
        self._reduce: Callable[[int], Any] | None = None

    @property
    def requested(self) -> bool:
        """True once this process has been asked to stop."""
        return self._number != 0

    @property
    def exit_code(self) -> int:
        """143 after SIGTERM, 130 after SIGINT, 0 without a signal."""
        number = self._agreed or self._number
        return 128 + number if number else 0

    @property
    def name(self) -> str:
        """The name of the signal, for a message; empty without one."""
        number = self._agreed or self._number
        return signal.Signals(number).name if number else ""

    def agreed(self) -> bool:
        """True if some process was asked to stop; every process gets the same answer.

        With several processes each must call this equally often (once after each step or eval
        batch). The answer is that of the call before, so it comes without waiting for the step
        just dispatched; the first call answers False.
        """
        if not _many_processes():
            return self.requested
        before, self._pending = self._pending, self._largest(self._number)
        if before is not None:
            self._agreed = int(before)
        return self._agreed != 0

    def wait(self, future: concurrent.futures.Future[T]) -> T:
        """The result of `future`; raises StopRequested if a signal comes first.

        Python runs signal handlers in the main thread between two bytecodes, so a compilation
        there would hold them back for minutes; in another thread it does not. With several
        processes a signal waits for the result, because the others would wait for this process.
        """
        while True:
            done, _ = concurrent.futures.wait([future], timeout=_POLL_SECONDS)
            if done:
                return future.result()
            if self.requested and not _many_processes():
                raise StopRequested(self._number)

    def install(self) -> None:
        """Takes the signals over (again)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            old = signal.signal(number, self._receive)
            self._old.setdefault(number, old)

    def __enter__(self) -> StopSignal:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        while self._old:
            number, old = self._old.popitem()
            signal.signal(number, signal.SIG_DFL if old is None else old)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._number == signal.SIGINT:
            raise KeyboardInterrupt
        self._number = self._number or number
        # Not print: the signal may have interrupted one.
        again = "; again to quit at once" if number == signal.SIGINT else ""
        name = signal.Signals(number).name
        os.write(2, f"{name}: stopping after the steps already begun{again}\n".encode())

    def _largest(self, number: int) -> Any:
        if self._reduce is None:
            self._reduce = _all_process_max()
        return self._reduce(number)


def in_background(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Starts `work` in a daemon thread: it keeps no process alive that has been told to stop."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="background", daemon=True)
    _background.append(thread)
    thread.start()
    return future


def leave(exit_code: int) -> NoReturn:
    """Ends the process with `exit_code`; call it last, outside every `with` block.

    Two cases need a short way out, logs and streams flushed but without Python's own ending.
    With background work still inside XLA that ending aborts the process (exit code 134). After a
    failure in one of several processes it waits minutes at JAX's shutdown barrier for the
    others, which wait in a collective for this one; if it is gone they fail at once.
    """
    failed = exit_code not in (0, *(128 + number for number in _SIGNALS))
    if not any(thread.is_alive() for thread in _background) and not (failed and _many_processes()):
        sys.exit(exit_code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _many_processes() -> bool:
    if "jax" not in sys.modules:
        return False
    import jax

    return jax.distributed.is_initialized() and jax.process_count() > 1


def _all_process_max() -> Callable[[int], Any]:
    """A function of one int per process whose result, on all of them, is the largest; it does
    not wait for the devices. One device of each process takes part."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    first = {device.process_index: device for device in reversed(jax.devices())}
    devices = [first[process] for process in sorted(first)]
    mesh = Mesh(np.array(devices), ("process",))
    one_each = NamedSharding(mesh, PartitionSpec("process"))
    largest = jax.jit(lambda x: x.max(), out_shardings=NamedSharding(mesh, PartitionSpec()))

    def reduce(number: int) -> Any:
        mine = np.array([number], np.int32)
        return largest(jax.make_array_from_process_local_data(one_each, mine, (len(devices),)))

    return reduce
