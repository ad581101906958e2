"""ArrayRecord files: records of bytes that hold text, JSON or a tf.train.Example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.documents import DataError
from data.extras import need
from data.jsonl import parse_object
from data.paths import FileSet, find_files
from data.records import InvalidBytes, Place, Record
from data.scan import printable
from data.tf_example import parse_example

_BATCH_RECORDS = 256


class ArrayRecords:
    """Records of ArrayRecord files.

    With data.text_field=null a record is a text; otherwise a JSON object, if it begins with `{`,
    or a serialized tf.train.Example, in which the field is looked up.
    """

    def __init__(self, files: FileSet, text_field: str | None) -> None:
        self._files = files
        self._text_field = text_field
        self.invalid = InvalidBytes()

    @classmethod
    def open(cls, path: str | None, text_field: str | None) -> ArrayRecords:
        return cls(find_files(path, "arrayrecord", (".arrayrecord", ".array_record")), text_field)

    def read(self) -> Iterator[Record]:
        self.invalid = InvalidBytes()
        for name, path in self._files:
            for number, content in enumerate(_contents(path), start=1):
                place = Place(name, number)
                yield Record(place, self._fields(content, place))

    def digest(self) -> str:
        return self._files.digest()

    def _fields(self, content: bytes, place: Place) -> dict[str, Any]:
        if self._text_field is None:
            return {"": self.invalid.decode(content, place)}
        if content.lstrip().startswith(b"{"):
            return parse_object(self.invalid.decode(content, place), place)
        try:
            example = parse_example(content)
        except ValueError as error:
            raise DataError(
                f"{place}: neither JSON nor a tf.train.Example ({error}); data.text_field=null "
                "takes the record itself as text"
            ) from error
        texts = {k: v for k, v in example.items() if k == self._text_field}
        return example | {k: self._text(v, place) for k, v in texts.items()}

    def _text(self, value: list[Any], place: Place) -> Any:
        """A feature that is one string, as text; all else stays a list."""
        if len(value) == 1 and isinstance(value[0], bytes):
            return self.invalid.decode(value[0], place)
        return value


def _contents(path: Path) -> Iterator[bytes]:
    module = need(
        "array_record.python.array_record_module", "arrayrecord", "data.source=arrayrecord"
    )
    reader = module.ArrayRecordReader(str(path))
    try:
        if not reader.ok():
            reader.read_all()  # raises with the reason
        for start in range(0, reader.num_records(), _BATCH_RECORDS):
            yield from reader.read(start, min(start + _BATCH_RECORDS, reader.num_records()))
        reader.close()
    except RuntimeError as error:
        raise DataError(f"cannot read {printable(path)}: {error}") from error
