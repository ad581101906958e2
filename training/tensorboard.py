"""A TensorBoard event file that a background thread writes, record by record.

The records are tensorboardX's; the file is our own. tensorboardX's writer buffers ten events or
two minutes of them and loses those when the process is killed. Here each event goes to the
operating system in one write before the next one is taken over, so a SIGKILL loses at most one.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import re
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tensorboardX import summary as summaries
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

log = logging.getLogger("foldtext")

_STAMP = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class EventFile:
    """One process's TensorBoard events in `directory`; a context manager.

    `first_step` is the first step that this process writes. TensorBoard hides what an earlier
    process wrote in the same directory at that step or later, so that a resumed run shows each
    step once. What goes wrong in the thread (a full disk, say) does not reach the caller; it is
    logged once.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = _create(directory)
        self._queue: queue.Queue[Event | None] = queue.Queue()
        self._failed = False
        self._thread = threading.Thread(target=self._drain, name="tensorboard", daemon=True)
        self._thread.start()
        self._put(Event(file_version="brain.Event:2"))
        self._put(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds one point to each tag; NaN and infinities are points too."""
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self.summary(step, Summary(value=points))

    def text(self, step: int, tag: str, text: str) -> None:
        """Adds a Markdown text."""
        self.summary(step, summaries.text(tag, text))

    def summary(self, step: int, summary: Summary) -> None:
        """Adds what a function of `tensorboardX.summary` made: an image, hparams, a histogram."""
        self._put(Event(step=step, summary=summary))

    def flush(self) -> None:
        """Returns when everything handed over so far has been written."""
        self._queue.join()

    def close(self) -> None:
        """Writes what is left and closes the file; closing twice is fine."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._file.close()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _put(self, event: Event) -> None:
        event.wall_time = time.time()
        self._queue.join()  # the one before; long written unless steps take microseconds
        self._queue.put(event)

    def _drain(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                if not self._failed:
                    self._write(_record(event.SerializeToString()))
            except OSError as error:
                self._failed = True  # half a record may be in the file: nothing may follow it
                log.warning("TensorBoard events are lost from here on: %s", error)
            finally:
                self._queue.task_done()

    def _write(self, record: bytes) -> None:
        if self._file.write(record) != len(record):
            raise OSError("the disk took only a part of an event")


def _record(data: bytes) -> bytes:
    """One TFRecord: length, its checksum, the data, its checksum; little-endian."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        [
            length,
            struct.pack("<I", masked_crc32c(length)),
            data,
            struct.pack("<I", masked_crc32c(data)),
        ]
    )


def _create(directory: Path) -> BinaryIO:
    """A new event file that sorts after those already there, as TensorBoard reads by name.

    Its name has the process id and a count as well: two writers that start in the same second
    get two files.
    """
    taken = [int(match[1]) for path in directory.iterdir() if (match := _STAMP.match(path.name))]
    stamp = max([int(time.time()), *(second + 1 for second in taken)])
    for count in itertools.count():
        name = f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}.{count}"
        try:
            return (directory / name).open("xb", buffering=0)
        except FileExistsError:
            continue
    raise AssertionError("unreachable")


def as_scalar(value: Any) -> float | int | None:
    """A plain number from a Python, NumPy or JAX scalar or a one-element array; None otherwise."""
    if isinstance(value, bool | int | float):
        return value
    try:
        item = value.item()  # NumPy and JAX; refuses more than one element
        return item if isinstance(item, bool | int | float) else float(item)
    except (AttributeError, TypeError, ValueError):
        return None
