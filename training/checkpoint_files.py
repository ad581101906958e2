"""Checkpoints that can be checked file by file, with a reason to show when one is damaged.

TensorStore notices a truncated file, noisily, and a changed byte in the arrays not at all: a
checkpoint with one flipped bit is restored as if nothing had happened. So the files of the state
are listed with their sizes and checksums before Orbax declares a checkpoint complete, and
compared with that list before Orbax reads them. Orbax is imported here, and only here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

STATE, RECORD = "state", "metadata"
_LIST = "files.json"
_CHECKSUM_LIMIT = 8 << 30  # bytes of a checkpoint above which only sizes are compared
_CHUNK = 1 << 20


class ListedStateHandler(ocp.StandardCheckpointHandler):
    """Orbax's handler of a tree of arrays; lists the files when all processes have written theirs.

    Orbax calls `finalize` on its primary process, just before it gives the checkpoint its name.
    """

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        write_list(Path(directory))


def open_saver(directory: Path, keep: int) -> ocp.CheckpointManager:
    """Orbax's asynchronous writer of `directory`, which keeps the newest `keep` steps.

    What killed processes left half-written is removed. An old step is deleted when the new one
    is complete, not before.
    """
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handlers.add(STATE, ocp.args.StandardSave, ListedStateHandler())
    handlers.add(RECORD, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
    return ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(keep),
            cleanup_tmp_directories=True,
        ),
        handler_registry=handlers,
    )


def save_args(state: Any, record: Mapping[str, Any]) -> ocp.args.Composite:
    """What to give to the saver: a tree of jax.Array and a JSON record with its checksum."""
    sealed = {**record, "crc32": _record_checksum(record)}
    items = {STATE: ocp.args.StandardSave(state), RECORD: ocp.args.JsonSave(sealed)}
    return ocp.args.Composite(**items)


def read_state(step_directory: Path, abstract: Any, partial: bool) -> Any:
    """The arrays of `abstract` (jax.ShapeDtypeStruct with shardings).

    The tree's own reader: CheckpointManager.restore would have processes that can read their
    shards wait at a barrier for one that cannot.
    """
    reader = ocp.PyTreeCheckpointHandler()
    args = ocp.args.PyTreeRestore(
        abstract,
        restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
        partial_restore=partial,
    )
    try:
        return reader.restore(step_directory / STATE, args=args)
    finally:
        reader.close()


def read_record(step_directory: Path) -> dict[str, Any]:
    """The JSON record of a checkpoint; raises OSError or ValueError unless it is as saved."""
    path = step_directory / RECORD / "metadata"
    record = json.loads(path.read_bytes())
    if not isinstance(record, dict) or record.pop("crc32", None) != _record_checksum(record):
        raise ValueError(f"{path} is not as it was saved")
    return record


def write_list(directory: Path) -> None:
    """Lists the files of `directory` with sizes and checksums."""
    sizes = {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    checked = sum(sizes.values()) <= _CHECKSUM_LIMIT
    files = {
        name: [size, _file_checksum(directory / name) if checked else None]
        for name, size in sizes.items()
    }
    (directory / _LIST).write_text(json.dumps(files, indent=0))


def check_list(directory: Path) -> None:
    """Compares the files of `directory` with their list.

    Raises OSError or ValueError with the first file that is missing or not as it was saved.
    """
    for name, (size, checksum) in json.loads((directory / _LIST).read_bytes()).items():
        path = directory / name
        found = path.stat().st_size
        if found != size:
            raise ValueError(f"{name} has {found} bytes, {size} were saved")
        if checksum is not None and _file_checksum(path) != checksum:
            raise ValueError(f"{name} is not as it was saved (checksum)")


def _file_checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _record_checksum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
