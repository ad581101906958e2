"""One pass over a file: is there text in it, is it UTF-8, what is its checksum."""

from __future__ import annotations

import codecs
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.documents import DataError

CHUNK_BYTES = 1 << 20
BOM = codecs.BOM_UTF8


@dataclass(frozen=True)
class FileScan:
    """What a scan found; sizes and offsets in bytes."""

    size: int
    bom_size: int
    """Bytes of the byte-order mark at the start, 0 or 3; they are not part of the document."""
    blank: bool
    """No character but white space."""
    checksum: int
    invalid_bytes: int
    """Bytes that are not part of a UTF-8 character."""
    first_invalid: int | None
    """Offset of the first of them in the file."""


def scan_file(path: Path, chunk_bytes: int = CHUNK_BYTES) -> FileScan:
    """Reads a file once, a chunk at a time. Raises DataError where it cannot be read.

    The result does not depend on the locale or on where the chunks end.
    """
    utf8 = _Utf8Check()
    size = checksum = bom_size = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(chunk_bytes):
                checksum = zlib.crc32(chunk, checksum)
                if size == 0 and chunk.startswith(BOM):
                    bom_size = len(BOM)
                utf8.feed(chunk)
                size += len(chunk)
    except OSError as error:
        raise unreadable(path, error) from error
    utf8.feed(b"", final=True)
    return FileScan(size, bom_size, utf8.blank, checksum, utf8.invalid_bytes, utf8.first_invalid)


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for a path that the system refuses to read."""
    reason = getattr(error, "strerror", None) or error
    return DataError(f"cannot read {printable(path)}: {reason}")


def printable(path: Path | str) -> str:
    """A file name as text, the same in every locale; bytes that are not UTF-8 become escapes."""
    try:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a name that this locale cannot write at all
        return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


class _Utf8Check:
    """Counts the bytes that are not UTF-8 in a stream of chunks."""

    def __init__(self) -> None:
        # Each byte that is not UTF-8 becomes one lone surrogate, U+DC80..U+DCFF.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._decoded_bytes = 0
        self.blank = True
        self.invalid_bytes = 0
        self.first_invalid: int | None = None

    def feed(self, chunk: bytes, final: bool = False) -> None:
        text = self._decoder.decode(chunk, final)
        if self.blank:
            # Only a byte-order mark at the very start is none of the text.
            self.blank = not text.removeprefix("\ufeff" if self._decoded_bytes == 0 else "").strip()
        if text.isascii():
            self._decoded_bytes += len(text)
            return
        try:
            self._decoded_bytes += len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            self._count(text, error.start)
            self._decoded_bytes += len(text.encode("utf-8", "surrogateescape"))

    def _count(self, text: str, first: int) -> None:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        self.invalid_bytes += int(((codes >= 0xDC80) & (codes <= 0xDCFF)).sum())
        if self.first_invalid is None:
            before = text[:first].encode("utf-8", "surrogateescape")
            self.first_invalid = self._decoded_bytes + len(before)
