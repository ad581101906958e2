"""Checkpoints of the train state, saved beside the training and restored from the newest good one.

    with Checkpoints(run_dir / "checkpoints", keep=3) as checkpoints:
        restored = checkpoints.restore_latest(abstract_state)     # None: nothing was saved
        for step in ...:
            if step % every == 0:
                checkpoints.save(step, state, {"tokens": tokens, "config": fingerprint})
        checkpoints.save(last_step, state, metadata)              # no-op if already saved
    # leaving the block waits for the last save and raises if it failed

One directory per step, written by Orbax under another name and renamed when complete: a step
directory with a number for a name was complete once. What can be broken later is told apart
here: damaged checkpoints are skipped by name, and moved aside, not overwritten, when the run
goes on; a checkpoint of another model is refused leaf by leaf.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from training.leaves import describe, differences

log = logging.getLogger("foldtext")

T = TypeVar("T")

_STEP = re.compile(r"0|[1-9][0-9]*")


class CheckpointError(ValueError):
    """The saved checkpoints cannot serve this run: none is readable, or they hold another model."""


class Restored(NamedTuple):
    """What a checkpoint held: its step, the state, and the metadata given to `save`."""

    step: int
    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints in `directory` (made when first needed), of which the newest `keep` stay.

    Every process of a run has one and calls the same methods in the same order; Orbax lets each
    write its own shards. Saving is asynchronous. Orbax (0.5 s to import) is imported at first use.
    """

    def __init__(self, directory: str | Path, keep: int = 1) -> None:
        self.directory = Path(directory).absolute()
        self._keep = keep
        self._saver: Any = None
        self._last: int | None = None  # the newest step known to be saved or being saved
        self._skipped: dict[int, str] = {}  # damaged ones, and what is wrong with them

    def steps(self) -> list[int]:
        """The saved steps, in numeric order, readable or not."""
        if not self.directory.is_dir():
            return []
        names = (path.name for path in self.directory.iterdir() if path.is_dir())
        return sorted(int(name) for name in names if _STEP.fullmatch(name))

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> bool:
        """Starts to save `state` (a tree of jax.Array) and `metadata` (JSON) as step `step`.

        Returns when the state has been copied to the host, so that its buffers may be donated;
        waits for the save before, and raises RuntimeError if that one failed. Older checkpoints
        are deleted when this one is complete. Returns False, and does nothing, if `step` is
        already saved; raises CheckpointError if steps after it are.
        """
        if step == self._last:
            return False
        from training.checkpoint_files import save_args

        record = {"step": step, "metadata": dict(metadata), "leaves": describe(state)}
        self._open_saver(step)
        with self._saving(step):
            self._saver.save(step, args=save_args(state, record), force=True)
        self._last = step
        return True

    def restore_latest(self, abstract_state: Any, partial: bool = False) -> Restored | None:
        """The newest readable checkpoint, as arrays with exactly the shardings asked for.

        `abstract_state` is a tree of jax.ShapeDtypeStruct with shardings; the mesh and device
        count may differ from those of the save. With `partial` it may be a part of the saved tree
        (a dict {"parameters": ...} is enough for a state with that field). Values are
        bit-identical; the arrays own their buffers, so they can be donated.

        Returns None if nothing was ever saved. Raises CheckpointError if the newest readable
        checkpoint differs in a leaf's path, shape or dtype, or if there are checkpoints and none
        is readable. Skipped ones are logged with the reason.
        """
        self._skipped = {}
        for step in reversed(self.steps()):
            record = self._read(step, _record_of_sound_files)
            if record is None:
                continue
            self._refuse_differences(step, record["leaves"], describe(abstract_state), partial)
            state = self._read(step, lambda path: _owned_state(path, abstract_state, partial))
            if state is not None:
                self._last = step
                return Restored(step, state, record["metadata"])
        if self._skipped:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in self._skipped.items())
            raise CheckpointError(
                f"none of the checkpoints in {self.directory} is readable ({reasons}); "
                "repair or remove them, or take another run.dir"
            )
        return None

    def peek(self) -> tuple[int, dict[str, Any]] | None:
        """Step and metadata of the newest checkpoint with readable metadata; reads no arrays."""
        from training.checkpoint_files import read_record

        for step in reversed(self.steps()):
            try:
                return step, read_record(self.directory / str(step))["metadata"]
            except (OSError, ValueError):
                continue
        return None

    def wait(self) -> None:
        """Returns when the last save is complete; raises RuntimeError if it failed."""
        if self._saver is not None:
            with self._saving(self._last):
                self._saver.wait_until_finished()

    def close(self) -> None:
        """Waits for the last save, raises if it failed, and ends Orbax's threads."""
        try:
            self.wait()
        finally:
            saver, self._saver = self._saver, None
            if saver is not None:
                saver.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except RuntimeError as failure:  # the error that ends the block is the one to raise
            log.error("%s", failure)

    def _read(self, step: int, reader: Callable[[Path], T]) -> T | None:
        """What `reader` makes of the step's directory; None, on every process, if one failed."""
        result, reason = None, "another process could not read it"
        try:
            result = reader(self.directory / str(step))
        except Exception as error:  # whatever a damaged file makes its reader raise
            first_line = (str(error).splitlines() or [""])[0]
            reason = f"{type(error).__name__}: {first_line[:300]}"
        if _all_processes(result is not None):
            return result
        self._skipped[step] = reason
        log.warning("checkpoint %d in %s is skipped: %s", step, self.directory, reason)
        return None

    def _refuse_differences(
        self, step: int, saved: dict[str, str], wanted: dict[str, str], partial: bool
    ) -> None:
        lines = differences(saved, wanted, partial)
        if lines:
            raise CheckpointError(
                f"checkpoint {step} in {self.directory} is of another model or optimizer:\n  "
                + "\n  ".join(lines)
                + "\ntake the configuration it was saved with, or another run.dir"
            )

    def _open_saver(self, step: int) -> None:
        if self._saver is not None:
            return
        later = [saved for saved in self.steps() if saved >= step and saved not in self._skipped]
        if later:
            raise CheckpointError(
                f"{self.directory} has checkpoints {later} already, so step {step} is not saved "
                "there; resume from them or take another run.dir"
            )
        if jax.process_index() == 0:
            self._move_damaged_aside()
        _all_processes(True)  # nobody looks at the directory before that is done
        from training.checkpoint_files import open_saver

        with self._saving(step):
            self._saver = open_saver(self.directory, self._keep)

    @contextmanager
    def _saving(self, step: int | None) -> Iterator[None]:
        """Turns whatever a save raises into one kind of error that names the step."""
        try:
            yield
        except Exception as error:
            self._last = None
            raise RuntimeError(f"checkpoint {step} was not saved: {error}") from error

    def _move_damaged_aside(self) -> None:
        for step in self._skipped:
            names = (
                f"{step}.damaged{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 999)))
            )
            aside = next(path for name in names if not (path := self.directory / name).exists())
            (self.directory / str(step)).rename(aside)
            log.warning("damaged checkpoint %d is now %s; remove it when you like", step, aside)


def _record_of_sound_files(step_directory: Path) -> dict[str, Any]:
    from training.checkpoint_files import STATE, check_list, read_record

    record = read_record(step_directory)
    if jax.process_index() == 0:
        check_list(step_directory / STATE)
    return record


def _owned_state(step_directory: Path, abstract_state: Any, partial: bool) -> Any:
    from training.checkpoint_files import read_state

    return jax.tree.map(_own, read_state(step_directory, abstract_state, partial))


def _own(array: jax.Array) -> jax.Array:
    """An array whose buffers JAX owns.

    On CPUs a restored array may be a view of host memory that is not JAX's, which a train step
    cannot reuse for its output although it is donated.
    """
    if jax.default_backend() == "cpu":
        return jax.device_put(array, array.sharding, may_alias=False)
    return array


def _all_processes(ok: bool) -> bool:
    """True if `ok` is on every process; all of them wait for each other here."""
    if jax.process_count() == 1:
        return ok
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(ok))))
