"""How the tokens of each kind of source are made, and what they depend on."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path

from configs.schema import DataConfig
from data.array_record import ArrayRecords
from data.arrow_tables import open_parquet
from data.chat import write_conversations
from data.chat_template import ChatTemplate
from data.documents import DataError
from data.files import FileDocuments, ScanTotals
from data.hugging_face import is_saved, open_hugging_face
from data.jsonl import JsonLines
from data.records import Place, Records, field_text
from data.scan import printable, unreadable
from data.store import Recipe, StoreWriter
from data.texts import Text
from data.tokenizer import TextTokenizer
from data.tokenizing import write_texts


def file_recipe(files: FileDocuments, tokenizer: TextTokenizer) -> Recipe:
    """A document for every file."""

    def build(writer: StoreWriter) -> ScanTotals:
        texts = (Text(Place(name, 0), chunks) for name, chunks in files.texts())
        empty = write_texts(texts, tokenizer, writer)
        totals = files.totals
        return ScanTotals(
            totals.empty_documents + empty, totals.invalid_bytes, totals.first_invalid
        )

    return _recipe(tokenizer, {"content": files.digest()}, build)


def record_recipe(config: DataConfig, tokenizer: TextTokenizer) -> Recipe:
    """A document for the text in data.text_field of every record."""
    field = config.text_field
    if field is None and config.source != "arrayrecord":
        raise DataError("data.text_field=null: only records of data.source=arrayrecord can be text")
    name = field or ""
    records = _RECORDS[config.source](config, None if field is None else [field])

    def texts() -> Iterator[Text]:
        return (Text(record.place, [field_text(record, name)]) for record in records.read())

    def build(writer: StoreWriter) -> ScanTotals:
        return _totals(write_texts(texts(), tokenizer, writer), records)

    return _recipe(tokenizer, {"content": records.digest(), "field": name}, build)


def chat_recipe(config: DataConfig, tokenizer: TextTokenizer) -> Recipe:
    """A document for every conversation, weight on what the assistant says."""
    records = _chat_records(config)
    source = _template_source(config, tokenizer)
    template = source and ChatTemplate(source, tokenizer.special_tokens, config.chat_date)
    identity = {
        "content": records.digest(),
        "template": source or "",
        "date": config.chat_date,
        "special": repr(sorted(tokenizer.special_tokens.items())),
    }

    def build(writer: StoreWriter) -> ScanTotals:
        empty = write_conversations(records.read(), tokenizer, template or None, writer)
        return _totals(empty, records)

    return _recipe(tokenizer, identity, build, weighted=True)


def _recipe(
    tokenizer: TextTokenizer,
    identity: dict[str, str],
    build: Callable[[StoreWriter], ScanTotals],
    weighted: bool = False,
) -> Recipe:
    return Recipe(
        identity=identity | {"tokenizer": tokenizer.name},
        versions=" ".join(map(_version, ("tokenizers", "sentencepiece", "jinja2"))),
        vocab_size=tokenizer.vocab_size,
        weighted=weighted,
        build=build,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _totals(empty: int, records: Records) -> ScanTotals:
    return ScanTotals(empty, records.invalid.count, records.invalid.first)


_RECORDS: dict[str, Callable[[DataConfig, list[str] | None], Records]] = {
    "jsonl": lambda config, columns: JsonLines.open(config.path, config.source),
    "parquet": lambda config, columns: open_parquet(config.path, config.source, columns),
    "arrayrecord": lambda config, columns: ArrayRecords.open(config.path, config.text_field),
    "huggingface": open_hugging_face,
}


def _chat_records(config: DataConfig) -> Records:
    """JSON Lines, Parquet, or what `datasets` saved or the hub has, whichever data names."""
    if config.path is None or is_saved(Path(config.path).expanduser()):
        return open_hugging_face(config, None)
    if config.path.endswith((".parquet", ".pq")):
        return open_parquet(config.path, config.source, None)
    return JsonLines.open(config.path, config.source)


def _template_source(config: DataConfig, tokenizer: TextTokenizer) -> str | None:
    if config.chat_template is None:
        return tokenizer.chat_template
    path = Path(config.chat_template).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"data.chat_template={printable(path)}: {unreadable(path, error)}"
        ) from error
