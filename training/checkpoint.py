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

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np

log = logging.getLogger("foldtext")

_STATE, _RECORD = "state", "metadata"
_STEP = re.compile(r"0|[1-9][0-9]*")
_SHOWN_DIFFERENCES = 10


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
        self._damaged: list[int] = []

    def steps(self) -> list[int]:
        """The saved steps, in numeric order, readable or not."""
        if not self.directory.is_dir():
            return []
        names = (path.name for path in self.directory.iterdir() if path.is_dir())
        return sorted(int(name) for name in names if _STEP.fullmatch(name))

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> bool:
        """Starts to save `state` (a tree of jax.Array) and `metadata` (JSON) as step `step`.

        Returns when the state has been copied to the host, so that its buffers may be donated;
        waits for the save before, and raises what went wrong there. Older checkpoints are deleted
        when this one is complete. Returns False, and does nothing, if `step` is already saved.
        """
        if step == self._last:
            return False
        import orbax.checkpoint as ocp

        record = {"step": step, "metadata": dict(metadata), "leaves": describe(state)}
        items = ocp.args.Composite(
            **{_STATE: ocp.args.StandardSave(state), _RECORD: ocp.args.JsonSave(record)}
        )
        with _saving(f"checkpoint {step}"):
            self._open_saver(step).save(step, args=items, force=True)
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
        skipped: dict[int, str] = {}
        for step in reversed(self.steps()):
            record = self._record(step, skipped)
            if record is None:
                continue
            self._refuse_differences(step, record["leaves"], describe(abstract_state), partial)
            state = self._state(step, abstract_state, partial, skipped)
            if state is not None:
                self._last, self._damaged = step, list(skipped)
                return Restored(step, state, record["metadata"])
        if skipped:
            raise CheckpointError(
                f"none of the checkpoints in {self.directory} is readable ("
                + "; ".join(f"{step}: {reason}" for step, reason in skipped.items())
                + "); repair or remove them, or take another run.dir"
            )
        return None

    def peek(self) -> tuple[int, dict[str, Any]] | None:
        """Step and metadata of the newest checkpoint with readable metadata; reads no arrays."""
        for step in reversed(self.steps()):
            record = self._record(step, {})
            if record is not None:
                return step, record["metadata"]
        return None

    def wait(self) -> None:
        """Returns when the last save is complete; raises if it failed."""
        if self._saver is not None:
            with _saving(f"checkpoint {self._last}"):
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
        self.close()

    def _record(self, step: int, skipped: dict[int, str]) -> dict[str, Any] | None:
        path = self.directory / str(step) / _RECORD / "metadata"
        try:
            record = json.loads(path.read_bytes())
            if not {"metadata", "leaves"} <= record.keys():
                raise ValueError(f"{path} is not FoldText's")
        except (OSError, ValueError, AttributeError) as error:
            self._skip(step, error, skipped)
            return None
        return record

    def _state(self, step: int, abstract: Any, partial: bool, skipped: dict[int, str]) -> Any:
        import orbax.checkpoint as ocp

        # The reader of the tree itself: CheckpointManager.restore would have processes that can
        # read their shards wait at a barrier for one that cannot.
        reader = ocp.PyTreeCheckpointHandler()
        args = ocp.args.PyTreeRestore(
            abstract,
            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
            partial_restore=partial,
        )
        state, error = None, None
        try:
            state = jax.tree.map(
                _own, reader.restore(self.directory / str(step) / _STATE, args=args)
            )
        except Exception as caught:
            error = caught
        finally:
            reader.close()
        if not _all_processes(error is None):
            self._skip(step, error or "another process could not read it", skipped)
            return None
        return state

    def _skip(self, step: int, reason: object, skipped: dict[int, str]) -> None:
        lines = str(reason).splitlines() or [repr(reason)]
        skipped[step] = f"{type(reason).__name__}: {lines[0][:300]}"
        log.warning("checkpoint %d in %s is skipped: %s", step, self.directory, skipped[step])

    def _refuse_differences(
        self, step: int, saved: dict[str, str], wanted: dict[str, str], partial: bool
    ) -> None:
        found = differences(saved, wanted, partial)
        if not found:
            return
        shown = found[:_SHOWN_DIFFERENCES]
        if len(found) > len(shown):
            shown.append(f"and {len(found) - len(shown)} more")
        raise CheckpointError(
            f"checkpoint {step} in {self.directory} is of another model or optimizer:\n  "
            + "\n  ".join(shown)
            + "\ntake the configuration it was saved with, or another run.dir"
        )

    def _open_saver(self, step: int) -> Any:
        if self._saver is None:
            import orbax.checkpoint as ocp

            if jax.process_index() == 0:
                self._move_damaged_aside()
            later = [n for n in self.steps() if n >= step and n not in self._damaged]
            if later:
                raise CheckpointError(
                    f"{self.directory} has checkpoints {later} already, so step {step} is not "
                    "saved there; resume from them or take another run.dir"
                )
            self._saver = ocp.CheckpointManager(
                self.directory,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=ocp.checkpoint_managers.LatestN(self._keep),
                    cleanup_tmp_directories=True,
                ),
            )
        return self._saver

    def _move_damaged_aside(self) -> None:
        for step in self._damaged:
            aside = self.directory / f"{step}.damaged"
            count = 1
            while aside.exists():
                count += 1
                aside = self.directory / f"{step}.damaged-{count}"
            (self.directory / str(step)).rename(aside)
            log.warning("damaged checkpoint %d is now %s; remove it when you like", step, aside)


def describe(state: Any) -> dict[str, str]:
    """Path, dtype and shape of every leaf: {"parameters/embed": "float32[256,64]"}."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        )
        for path, leaf in leaves
    }


def differences(saved: dict[str, str], wanted: dict[str, str], partial: bool) -> list[str]:
    """A line for each leaf whose path, dtype or shape differs; `partial`: `saved` may have more."""
    paths = wanted if partial else {**saved, **wanted}
    absent = "absent"
    return [
        f"{path}: saved {saved.get(path, absent)}, now {wanted.get(path, absent)}"
        for path in paths
        if saved.get(path) != wanted.get(path)
    ]


class _saving:  # noqa: N801 (reads as a verb: with _saving("checkpoint 3"))
    """Turns whatever a save raises into one error that names the checkpoint."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, CheckpointError):
            raise RuntimeError(f"{self._what} was not saved: {error}") from error


def _own(array: jax.Array) -> jax.Array:
    """An array whose buffers JAX owns.

    On CPUs a restored array may be a view of host memory that is not JAX's, which a train step
    cannot reuse for its output although it is donated.
    """
    if all(device.platform == "cpu" for device in array.devices()):
        return jax.device_put(array, array.sharding, may_alias=False)
    return array


def _all_processes(ok: bool) -> bool:
    if jax.process_count() == 1:
        return ok
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.array(ok))))
