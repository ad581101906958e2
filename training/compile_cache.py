"""Compiled programs kept for the next run: JAX's persistent cache, and what JAX leaves undone.

A process that was killed while it wrote leaves an entry cut short. JAX warns of it, compiles the
program and does not write it again, since there is a file already: every later run compiles too.
Here the warning makes room: damaged entries are removed before JAX writes.
"""

from __future__ import annotations

import importlib
import logging
import zlib
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

log = logging.getLogger("foldtext")

_COMPLAINT = "Error reading persistent compilation cache entry"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def share_compiled_programs(directory: Path) -> None:
    """Keeps compiled programs for the next run; a directory that cannot be used is no error.

    All of them, however short: then a job that differs in numbers alone compiles nothing.
    """
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_raise_persistent_cache_errors", False)
    warnings = logging.getLogger("py.warnings")
    for handler in [h for h in warnings.handlers if isinstance(h, _MakesRoom)]:
        warnings.removeHandler(handler)
    warnings.addHandler(_MakesRoom(directory))


def share_no_programs() -> None:
    """Compiles everything anew, whatever a run before in this process has set up."""
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def remove_damaged(directory: Path) -> list[Path]:
    """Removes the entries that cannot be decompressed; returns them."""
    damaged = [entry for entry in directory.glob("*-cache") if not _is_whole(entry)]
    for entry in damaged:
        entry.unlink(missing_ok=True)
    return damaged


class _MakesRoom(logging.Handler):
    """Listens to warnings that console.py turns into records, which JAX's is before it compiles."""

    def __init__(self, directory: Path) -> None:
        super().__init__(logging.WARNING)
        self._directory = directory

    def emit(self, record: logging.LogRecord) -> None:
        if _COMPLAINT not in record.getMessage():
            return
        try:
            damaged = remove_damaged(self._directory)
        except OSError as error:
            log.warning("compile_cache=%s cannot be mended: %s", self._directory, error)
            return
        if damaged:
            what = f"{len(damaged)} damaged {'entry' if len(damaged) == 1 else 'entries'}"
            log.warning("compile_cache=%s: removed %s, compiling anew", self._directory, what)


def _is_whole(entry: Path) -> bool:
    """JAX compresses with zstd where Python has it, with zlib otherwise; both end in a checksum."""
    try:
        data = entry.read_bytes()
        if data.startswith(_ZSTD_MAGIC):
            return _zstd_is_whole(data)
        zlib.decompress(data)
    except (OSError, zlib.error) as error:
        return not isinstance(error, zlib.error)
    return True


def _zstd_is_whole(data: bytes) -> bool:
    for name in ("compression.zstd", "zstandard"):
        try:
            zstd = importlib.import_module(name)
        except ImportError:
            continue
        try:
            zstd.decompress(data)
        except zstd.ZstdError:
            return False
        return True
    return True  # nobody here can tell
