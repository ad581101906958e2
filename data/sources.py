"""Where documents come from: one function for each value of data.source.

A further source is one more function here that returns a `Source`; whatever its files hold, its
`documents` are token ids that can be read at any place.
"""

from __future__ import annotations

import stat
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from configs.schema import DataConfig
from data.documents import DataError, Documents
from data.files import FileDocuments, ScanTotals, list_files
from data.scan import printable, unreadable
from data.synthetic import SyntheticDocuments
from data.tokenizer import ByteTokenizer, NumberTokenizer, Tokenizer, check_vocab_size

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


def open_source(config: DataConfig, vocab_size: int) -> Source:
    """Opens data.source. Raises DataError for an input that is missing, unreadable or empty,
    and for a tokenizer with ids past vocab_size."""
    if config.source == "synthetic":
        return _synthetic(config, vocab_size)
    origin = "data.source=stdlib" if config.source == "stdlib" else f"data.path={config.path}"
    tokenizer = ByteTokenizer()
    check_vocab_size(tokenizer, vocab_size, printable(origin))
    try:
        documents = _stdlib() if config.source == "stdlib" else _text(config.path)
    except DataError as error:
        raise DataError(f"{printable(origin)}: {error}") from error
    return Source(documents, tokenizer, documents.totals)


def _synthetic(config: DataConfig, vocab_size: int) -> Source:
    documents = SyntheticDocuments(config.seed, config.seq_len, vocab_size)
    return Source(documents, NumberTokenizer(vocab_size), ScanTotals(0, 0, None))


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
    """A file, or every file below a folder, as UTF-8 text; a file a document."""
    if not path:
        raise DataError("data.source=text needs data.path, a file or a folder")
    root = Path(path).expanduser()
    try:
        mode = root.stat().st_mode
    except FileNotFoundError as error:
        raise DataError(f"no such file or folder (in {printable(Path.cwd())})") from error
    except (OSError, ValueError) as error:
        raise unreadable(root, error) from error
    if stat.S_ISREG(mode):
        return FileDocuments(root.parent, [root.name])
    if not stat.S_ISDIR(mode):
        raise DataError("neither a file nor a folder")
    paths = list_files(root)
    if not paths:
        raise DataError("the folder has no files, so 0 tokens")
    return FileDocuments(root, paths)
