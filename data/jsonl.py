"""JSON Lines: a JSON object a line, in plain or gzipped files."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from data.documents import DataError
from data.paths import FileSet, find_files
from data.records import InvalidBytes, Place, Record, json_type
from data.scan import unreadable

SUFFIXES = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")


class JsonLines:
    """Records of JSON Lines files; blank lines are no records. A line is in memory at a time."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self.invalid = InvalidBytes()

    @classmethod
    def open(cls, path: str | None, source: str) -> JsonLines:
        return cls(find_files(path, source, SUFFIXES))

    def read(self) -> Iterator[Record]:
        self.invalid = InvalidBytes()
        for name, path in self._files:
            for number, line in enumerate(_lines(path), start=1):
                content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                place = Place(name, number)
                if text := self.invalid.decode(content, place).strip():
                    yield Record(place, parse_object(text, place))

    def digest(self) -> str:
        return self._files.digest()


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def _open(path: Path) -> BinaryIO:
    if path.name.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path))
    return path.open("rb")


def parse_object(text: str, place: Place) -> dict[str, Any]:
    """One JSON object; DataError, with its place, for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{place}: not JSON: {error}{_hint(text, place)}") from error
    except RecursionError as error:
        raise DataError(f"{place}: JSON that is nested too deeply") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{place}: a JSON object is needed on every line, this is {json_type(value)}"
            + _hint(text, place)
        )
    return value


def _hint(text: str, place: Place) -> str:
    if place.number == 1 and text[0] in "[{":
        return "; JSON Lines has one whole object a line, no list around them"
    return ""
