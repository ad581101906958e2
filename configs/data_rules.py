"""Rules on the data: every key that is set is read by the source, every file is there."""

from __future__ import annotations

import datetime
import difflib
import glob
from collections.abc import Iterator
from pathlib import Path

from configs.rule import Sizes, rule
from configs.schema import Config

SMALLEST_BYTE_VOCAB = 257  # 256 byte values and the end of a document

_WITHOUT_PATH = ("stdlib", "synthetic")
_WITHOUT_TEXT = ("synthetic", "tokens")
_FROM_HUB = ("huggingface", "chat")


@rule("model.vocab_size", "data.source", "data.tokenizer", "init.from_hf")
def _vocabulary(config: Config, _: Sizes) -> Iterator[str]:
    vocab, source = config.model.vocab_size, config.data.source
    is_bytes = config.data.tokenizer is None and source not in _WITHOUT_TEXT
    if not is_bytes or vocab >= SMALLEST_BYTE_VOCAB:
        return
    if config.init.from_hf is not None:
        yield (
            f"init.from_hf={config.init.from_hf}: the folder has {vocab} tokens and no tokenizer "
            f"for data.source={source}: data.tokenizer=FILE, or data=synthetic or data=tokens for "
            "ids"
        )
    else:
        yield (
            f"model.vocab_size={vocab} is too small for data.source={source}: 256 bytes and EOS "
            f"make {SMALLEST_BYTE_VOCAB}, the least that would fit"
        )


@rule("data.source", "data.path", "data.hub_name")
def _data_path(config: Config, _: Sizes) -> Iterator[str]:
    source, path = config.data.source, config.data.path
    if source in _WITHOUT_PATH:
        if path is not None:
            yield f"data.path={path} is not read by data.source={source}; data=text reads it"
    elif path is None:
        if config.data.hub_name is None or source not in _FROM_HUB:
            yield f"data.path=null: data.source={source} needs a file or a folder; data.path=PATH"
    elif not _exists(path) and not glob.has_magic(path):
        yield f"data.path={path}: there is no such file or folder{_nearest(path)}"


@rule("data.source", "data.path", "data.hub_name")
def _hub_name(config: Config, _: Sizes) -> Iterator[str]:
    name, source, path = config.data.hub_name, config.data.source, config.data.path
    if name is None:
        return
    if source not in _FROM_HUB:
        yield f"data.hub_name={name} is not read by data.source={source}; data=huggingface reads it"
    elif path is not None:
        yield f"data.hub_name={name} and data.path={path}: one of them must be null"


@rule("data.source", "data.tokenizer")
def _tokenizer(config: Config, _: Sizes) -> Iterator[str]:
    path, source = config.data.tokenizer, config.data.source
    if path is None:
        return
    if source == "synthetic":
        yield f"data.tokenizer={path} is not read by data.source=synthetic, which has no text"
    elif not _exists(path):
        yield f"data.tokenizer={path}: there is no such file or folder{_nearest(path)}"


@rule("data.source", "data.tokenizer", "data.eos_token")
def _eos_token(config: Config, _: Sizes) -> Iterator[str]:
    token, source = config.data.eos_token, config.data.source
    if token is None or source == "tokens":
        return
    if config.data.tokenizer is None or source == "synthetic":
        yield (
            f"data.eos_token={token} is not read by data.source={source} without data.tokenizer; "
            "data.eos_token=null"
        )


@rule("data.source", "data.text_field")
def _text_field(config: Config, _: Sizes) -> Iterator[str]:
    source = config.data.source
    if config.data.text_field is None and source in ("jsonl", "parquet", "huggingface"):
        yield f"data.text_field=null: data.source={source} needs the name of a field, such as text"


@rule("data.source", "data.chat_template", "data.chat_date")
def _chat(config: Config, _: Sizes) -> Iterator[str]:
    path, date = config.data.chat_template, config.data.chat_date
    if path is not None and config.data.source != "chat":
        yield f"data.chat_template={path} is read by data=chat alone"
    elif path is not None and not Path(path).is_file():
        yield f"data.chat_template={path}: there is no such file"
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        yield f"data.chat_date={date} is no date; it takes one such as 2024-07-26"


def _nearest(path: str) -> str:
    """`; did you mean /x/novels?` for /x/novel, where that is there."""
    try:
        names = sorted(entry.name for entry in Path(path).parent.iterdir())
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(Path(path).name, names, n=1)
    return f"; did you mean {Path(path).parent / near[0]}?" if near else ""


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
