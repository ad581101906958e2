"""Token ids in files: .npy of any integers, or raw .bin, mapped into memory and never copied."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.documents import DataError, Documents, check_token_ids
from data.files import ScanTotals
from data.paths import FileSet
from data.scan import printable, unreadable

SUFFIXES = (".npy", ".bin")
_CHUNK_TOKENS = 1 << 22


class TokenFileDocuments(Documents):
    """Documents of token files: what stands between EOS tokens, and between the ends of files.

    Every file is read once, to check its ids and to find the EOS tokens. Raises DataError for an
    id outside 0..vocab_size-1, naming the file, the id and the limits, and for files without any
    document.
    """

    def __init__(self, files: FileSet, bin_dtype: str, eos_id: int, vocab_size: int) -> None:
        self._names = [name for name, _ in files]
        self._arrays = [_open(path, np.dtype(bin_dtype)) for _, path in files]
        scans = [
            _scan(array, name, eos_id, vocab_size)
            for array, name in zip(self._arrays, self._names, strict=True)
        ]
        self._file_of = np.repeat(np.arange(len(scans)), [len(scan.starts) for scan in scans])
        self._starts = np.concatenate([scan.starts for scan in scans])
        self.lengths = np.concatenate([scan.stops for scan in scans]) - self._starts
        self._checksums = [scan.checksum for scan in scans]
        self.totals = ScanTotals(sum(scan.empty for scan in scans), 0, None)
        if not len(self.lengths):
            raise DataError("0 tokens: the files hold nothing, or EOS tokens alone")

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        first = int(self._starts[document])
        return self._arrays[self._file_of[document]][first + start : first + stop]

    def name(self, document: int) -> str:
        return f"{self._names[self._file_of[document]]}, token {self._starts[document]}"

    def digest(self) -> str:
        parts = zip(self._names, self._arrays, self._checksums, strict=True)
        text = "".join(f"{name}\0{len(array)}\0{checksum}\n" for name, array, checksum in parts)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class _Scan(NamedTuple):
    starts: np.ndarray
    """Of the documents that have a token, int64."""
    stops: np.ndarray
    empty: int
    checksum: int
    """Of the ids, whatever the width that they are stored in."""


def _open(path: Path, bin_dtype: np.dtype) -> np.ndarray:
    try:
        array = _open_npy(path) if path.suffix == ".npy" else _open_bin(path, bin_dtype)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise unreadable(path, error) from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"{printable(path)} holds {array.dtype.name} of shape {array.shape}; token ids are "
            "integers in one dimension"
        )
    return array


def _open_npy(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _open_bin(path: Path, dtype: np.dtype) -> np.ndarray:
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DataError(
            f"{printable(path)}: {size} bytes are no whole number of {dtype.name} (data.bin_dtype)"
        )
    if size == 0:
        return np.zeros(0, dtype)
    array = np.memmap(path, dtype.newbyteorder("<"), mode="r")
    if dtype.itemsize == 2 and len(array) > 1 and not array[1:_CHUNK_TOKENS:2].any():
        raise DataError(
            f"{printable(path)}: every other {dtype.name} is 0, as in a file of uint32; "
            "data.bin_dtype=uint32 reads it so"
        )
    return array


def _scan(array: np.ndarray, name: str, eos_id: int, vocab_size: int) -> _Scan:
    ends, checksum = [], 0
    for start in range(0, len(array), _CHUNK_TOKENS):
        chunk = array[start : start + _CHUNK_TOKENS]
        if chunk.min() < 0 or chunk.max() >= vocab_size:
            check_token_ids(array, name, vocab_size)
        ends.append(np.flatnonzero(chunk == eos_id) + start)
        checksum = zlib.crc32(chunk.astype("<u4").tobytes(), checksum)
    eos = np.concatenate([np.zeros(0, np.int64), *ends])
    starts, stops = np.append(0, eos + 1), np.append(eos, len(array))
    kept = stops > starts
    is_tail_empty = not kept[-1]  # after the last EOS there is no document
    return _Scan(starts[kept], stops[kept], int((~kept).sum()) - is_tail_empty, checksum)
