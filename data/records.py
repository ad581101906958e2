"""Records: rows of JSON, Parquet and the like, read one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from data.documents import DataError


class Place(NamedTuple):
    """Where a document is from; it names the document."""

    file: str
    number: int
    """Line or row, from 1; 0 where the file is one document."""

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.number else self.file


class Record(NamedTuple):
    place: Place
    fields: Mapping[str, Any]


@dataclass
class InvalidBytes:
    """Counts bytes that are not UTF-8; they become U+FFFD wherever text is decoded."""

    count: int = 0
    first: str | None = None

    def decode(self, line: bytes, place: Place) -> str:
        """The text of some bytes; what is not UTF-8 in them is counted and replaced."""
        try:
            return line.decode()
        except UnicodeDecodeError:
            escaped = line.decode("utf-8", "surrogateescape")
            self.count += sum("\udc80" <= character <= "\udcff" for character in escaped)
            self.first = self.first or str(place)
            return line.decode("utf-8", "replace")


class Records(Protocol):
    """Records that can be read any number of times, in the same order."""

    invalid: InvalidBytes
    """Of the last reading."""

    def read(self) -> Iterator[Record]:
        """Every record, in order; DataError, with its place, for one that is malformed."""
        ...

    def digest(self) -> str:
        """A short hash of the names and contents of all files."""
        ...


def field_text(record: Record, field: str) -> str:
    """The text in a field; null is an empty text. DataError for a missing field and other types."""
    if field not in record.fields:
        raise DataError(
            f"{record.place}: there is no field {field!r} (data.text_field); the fields are "
            f"{', '.join(map(str, record.fields)) or 'none'}"
        )
    value = record.fields[field]
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise DataError(
        f"{record.place}: the field {field!r} (data.text_field) holds {json_type(value)}, not text"
    )


def json_type(value: Any) -> str:
    """What JSON calls a value: `a list`, `a number`; Python's name for what JSON does not have."""
    names = {
        dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number",
        float: "a number", type(None): "null",
    }  # fmt: skip
    return names.get(type(value), type(value).__name__)
