"""Files as documents: the bytes of each file are its tokens."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.documents import DataError, Documents
from data.scan import CHUNK_BYTES, FileScan, printable, scan_file, unreadable


@dataclass(frozen=True)
class ScanTotals:
    """What was met while files were scanned."""

    empty_documents: int
    """Files without a character that is not white space; they are left out."""
    invalid_bytes: int
    first_invalid: str | None
    """File and byte offset of the first byte that is not UTF-8."""


class FileDocuments(Documents):
    """Every file below a root that has text in it, sorted by its path; read when asked for.

    Nothing but names, sizes and checksums is kept in memory. Raises DataError for a file that
    cannot be read and where no file has any text.
    """

    def __init__(self, root: Path, relative_paths: Sequence[str]) -> None:
        scans = [scan_file(root / path) for path in relative_paths]
        kept = [i for i, scan in enumerate(scans) if not scan.blank]
        self._root = root
        self._names = [relative_paths[i] for i in kept]
        self._starts = [scans[i].bom_size for i in kept]
        self._checksums = [scans[i].checksum for i in kept]
        self.lengths = np.array([scans[i].size - scans[i].bom_size for i in kept], np.int64)
        self.totals = _totals(relative_paths, scans)
        if not kept:
            raise DataError(
                f"0 tokens: every file is empty or white space ({len(scans)} in {printable(root)})"
            )

    def texts(self) -> Iterator[tuple[str, Iterator[str]]]:
        """(name, text in chunks) of every document; bytes that are not UTF-8 become U+FFFD."""
        for name, start in zip(self._names, self._starts, strict=True):
            yield printable(name), _decoded(self._root / name, start)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        path = self._root / self._names[document]
        offset = self._starts[document] + start
        try:
            tokens = np.fromfile(path, np.uint8, count=stop - start, offset=offset)
        except OSError as error:
            raise unreadable(path, error) from error
        if len(tokens) != stop - start:
            raise DataError(
                f"{printable(path)} changed while it was in use: {stop - start} bytes were "
                f"expected at offset {offset}, {len(tokens)} are there"
            )
        return tokens

    def name(self, document: int) -> str:
        return printable(self._names[document])

    def digest(self) -> str:
        parts = zip(self._names, self.lengths.tolist(), self._checksums, strict=True)
        text = "".join(f"{name}\0{length}\0{checksum}\n" for name, length, checksum in parts)
        return hashlib.blake2b(os.fsencode(text), digest_size=8).hexdigest()


def _decoded(path: Path, start: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(CHUNK_BYTES):
                yield decoder.decode(chunk)
    except OSError as error:
        raise unreadable(path, error) from error
    yield decoder.decode(b"", final=True)


def _totals(relative_paths: Sequence[str], scans: Sequence[FileScan]) -> ScanTotals:
    first = next((i for i, scan in enumerate(scans) if scan.invalid_bytes), None)
    return ScanTotals(
        empty_documents=sum(scan.blank for scan in scans),
        invalid_bytes=sum(scan.invalid_bytes for scan in scans),
        first_invalid=None
        if first is None
        else f"{printable(relative_paths[first])}, byte {scans[first].first_invalid}",
    )


def list_files(root: Path, keep_folder: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Paths of all files below a folder, relative to it, sorted by their bytes in every locale.

    Links are followed, a folder reached twice is listed once. Raises DataError for what is neither
    file nor folder (a pipe would be waited for without end) and for what cannot be read.
    """
    paths = _walk(root, keep_folder, visited=set(), prefix="")
    return sorted(paths, key=lambda path: [os.fsencode(part) for part in path.split("/")])


def _walk(
    root: Path, keep_folder: Callable[[str], bool], visited: set[tuple[int, int]], prefix: str
) -> Iterator[str]:
    folder = root / prefix
    try:
        identity = folder.stat()
        entries = sorted(folder.iterdir(), key=os.fsencode)
    except OSError as error:
        raise unreadable(folder, error) from error
    if (identity.st_dev, identity.st_ino) in visited:
        return
    visited.add((identity.st_dev, identity.st_ino))
    for entry in entries:
        relative = f"{prefix}{entry.name}"
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            raise unreadable(entry, error) from error
        if stat.S_ISDIR(mode):
            if keep_folder(entry.name):
                yield from _walk(root, keep_folder, visited, relative + "/")
        elif stat.S_ISREG(mode):
            yield relative
        else:
            raise DataError(f"{printable(entry)} is neither a file nor a folder")
