"""Where documents come from: what each value of data.source opens.

Whatever its files hold, the `documents` of a source are token ids that can be read at any place.
A further source of records is a line in `data/recipes.py`.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from configs.schema import DataConfig
from data.documents import DataError, Documents
from data.files import FileDocuments, ScanTotals, list_files
from data.open_tokenizer import data_origin, open_text_tokenizer, open_tokenizer
from data.paths import find_files
from data.recipes import chat_recipe, file_recipe, record_recipe
from data.store import stored
from data.synthetic import SyntheticDocuments
from data.token_files import SUFFIXES as TOKEN_SUFFIXES
from data.token_files import TokenFileDocuments
from data.tokenizer import ByteTokenizer, TextTokenizer, Tokenizer

# Packages that distributions often leave out (tests, idle), and what is no part of the library.
STDLIB_LEFT_OUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Documents, the tokenizer that reads them, and what was met while they were opened."""

    documents: Documents
    tokenizer: Tokenizer
    totals: ScanTotals
    adds_eos: bool = True
    """Whether EOS is still to be put at the end of each document."""


def open_source(config: DataConfig, vocab_size: int) -> Source:
    """Opens data.source. Raises DataError for an input that is missing, unreadable or empty,
    and for a tokenizer with ids past vocab_size."""
    if config.source == "synthetic":
        documents = SyntheticDocuments(config.seed, config.seq_len, vocab_size)
        return Source(documents, open_tokenizer(config, vocab_size), ScanTotals(0, 0, None))
    if config.source == "tokens":
        return _tokens(config, open_tokenizer(config, vocab_size), vocab_size)
    tokenizer = open_text_tokenizer(config, vocab_size)
    try:
        return _texts(config, tokenizer)
    except DataError as error:
        raise DataError(f"{data_origin(config)}: {error}") from error


def _tokens(config: DataConfig, tokenizer: Tokenizer, vocab_size: int) -> Source:
    try:
        files = find_files(config.path, config.source, TOKEN_SUFFIXES)
        documents = TokenFileDocuments(files, config.bin_dtype, tokenizer.eos_id, vocab_size)
    except DataError as error:
        raise DataError(f"{data_origin(config)}: {error}") from error
    return Source(documents, tokenizer, documents.totals)


def _texts(config: DataConfig, tokenizer: TextTokenizer) -> Source:
    if config.source in ("stdlib", "text"):
        files = _stdlib() if config.source == "stdlib" else _text(config.path)
        if isinstance(tokenizer, ByteTokenizer):
            return Source(files, tokenizer, files.totals)
        recipe = file_recipe(files, tokenizer)
    elif config.source == "chat":
        recipe = chat_recipe(config, tokenizer)
    else:
        recipe = record_recipe(config, tokenizer)
    documents = stored(recipe, config.token_cache)
    if not len(documents.lengths):
        raise DataError(
            f"0 tokens: every document is empty or white space ({documents.totals.empty_documents})"
        )
    return Source(documents, tokenizer, documents.totals, adds_eos=config.source != "chat")


def _stdlib() -> FileDocuments:
    """The sources of the running Python's standard library, a module a document."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [
        path
        for path in list_files(root, lambda folder: folder not in STDLIB_LEFT_OUT)
        # _sysconfigdata is written when Python is built, for one machine.
        if path.endswith(".py") and not path.startswith("_sysconfigdata")
    ]
    if not paths:
        raise DataError(f"this Python keeps no library sources in {root}; use data.source=text")
    return FileDocuments(root, paths)


def _text(path: str | None) -> FileDocuments:
    """Files as UTF-8 text, a file a document."""
    files = find_files(path, "text")
    return FileDocuments(files.root, files.names)
