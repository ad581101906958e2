"""Columnar files through pyarrow: Parquet, and the folders that `datasets` saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data.documents import DataError
from data.extras import need
from data.paths import FileSet, find_files
from data.records import InvalidBytes, Place, Record
from data.scan import printable
from data.tokenizer_files import read_json

_BATCH_ROWS = 1024


class TableFiles:
    """Rows of columnar files, a batch in memory at a time.

    `open_batches(path, columns)` gives the record batches of a file; columns that a file does not
    have are left out. Columns None reads all.
    """

    def __init__(
        self,
        files: FileSet,
        open_batches: Callable[[Path, list[str] | None], Iterator[Any]],
        columns: list[str] | None,
    ) -> None:
        self._files = files
        self._open_batches = open_batches
        self._columns = columns
        self.invalid = InvalidBytes()

    def read(self) -> Iterator[Record]:
        for name, path in self._files:
            number = 0
            try:
                for batch in self._open_batches(path, self._columns):
                    for number, row in enumerate(batch.to_pylist(), start=number + 1):  # noqa: B020
                        yield Record(Place(name, number), row)
            except (OSError, ValueError) as error:  # what pyarrow raises derives from these
                if isinstance(error, DataError):
                    raise
                raise DataError(f"cannot read {printable(path)}: {error}") from error

    def digest(self) -> str:
        return self._files.digest()


def open_parquet(path: str | None, source: str, columns: list[str] | None) -> TableFiles:
    """Parquet files; DataError without pyarrow, and where there is no such file."""
    parquet = need("pyarrow.parquet", "parquet", f"data.source={source}")

    def batches(path: Path, columns: list[str] | None) -> Iterator[Any]:
        with parquet.ParquetFile(path) as file:
            chosen = _present(columns, file.schema_arrow.names, printable(path))
            yield from file.iter_batches(_BATCH_ROWS, columns=chosen)

    return TableFiles(find_files(path, source, (".parquet", ".pq")), batches, columns)


def open_saved(folder: Path, columns: list[str] | None) -> TableFiles:
    """A folder that `Dataset.save_to_disk` of the package `datasets` wrote; it is not needed."""
    state = read_json(folder / "state.json")
    names = [entry["filename"] for entry in state.get("_data_files", [])]
    if not names:
        raise DataError(f"{printable(folder / 'state.json')} names no data files")
    return open_arrow(FileSet(folder, names), columns)


def open_arrow(files: FileSet, columns: list[str] | None) -> TableFiles:
    """Files in Arrow's streaming format, mapped into memory."""
    pyarrow = need("pyarrow", "parquet", "data.source=huggingface")

    def batches(path: Path, columns: list[str] | None) -> Iterator[Any]:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
            chosen = _present(columns, stream.schema.names, printable(path))
            for batch in stream:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(start, _BATCH_ROWS).select(chosen)

    return TableFiles(files, batches, columns)


def _present(columns: list[str] | None, names: list[str], where: str) -> list[str]:
    """The columns to read: all, or those asked for; DataError where there is none of them."""
    chosen = [name for name in names if columns is None or name in columns]
    if not chosen:
        raise DataError(
            f"{where}: there is no field {' or '.join(map(repr, columns or []))} "
            f"(data.text_field); the fields are {', '.join(names) or 'none'}"
        )
    return chosen
