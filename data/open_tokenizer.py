"""From data.tokenizer to a tokenizer."""

from __future__ import annotations

from configs.schema import DataConfig
from data.documents import DataError
from data.hub_tokenizer import HubTokenizer
from data.scan import printable
from data.sentencepiece_tokenizer import SentencePieceTokenizer
from data.tokenizer import (
    ByteTokenizer,
    NumberTokenizer,
    TextTokenizer,
    Tokenizer,
    check_vocab_size,
)
from data.tokenizer_files import find_tokenizer


def open_tokenizer(config: DataConfig, vocab_size: int) -> Tokenizer:
    """The tokenizer of a configuration, without opening its data.

    Raises DataError for a tokenizer that cannot be read, that has no EOS token, or that has ids
    past vocab_size.
    """
    if config.source == "synthetic":
        return NumberTokenizer(vocab_size)
    if config.source == "tokens" and config.tokenizer is None:
        return NumberTokenizer(vocab_size, _eos_number(config, vocab_size))
    return open_text_tokenizer(config, vocab_size)


def open_text_tokenizer(config: DataConfig, vocab_size: int) -> TextTokenizer:
    """As `open_tokenizer`, for sources that hold text."""
    if config.tokenizer is None:
        origin, tokenizer = data_origin(config), _bytes(config)
    else:
        origin = f"data.tokenizer={printable(config.tokenizer)}"
        tokenizer = _open(config, config.tokenizer, origin)
    check_vocab_size(tokenizer, vocab_size, origin)
    return tokenizer


def data_origin(config: DataConfig) -> str:
    """The key and the value that say where the data is: what error messages begin with."""
    if config.source in ("stdlib", "synthetic"):
        return f"data.source={config.source}"
    if config.path is None and config.hub_name is not None:
        return f"data.hub_name={config.hub_name}"
    return printable(f"data.path={config.path}")


def _bytes(config: DataConfig) -> TextTokenizer:
    if config.eos_token is not None:
        raise DataError(
            f"data.eos_token={config.eos_token}: without data.tokenizer, tokens are bytes and 256 "
            "ends a document"
        )
    return ByteTokenizer()


def _open(config: DataConfig, path: str, origin: str) -> TextTokenizer:
    try:
        files = find_tokenizer(path)
        if files.model.suffix == ".model":
            return SentencePieceTokenizer(files, config.eos_token)
        return HubTokenizer(files, config.eos_token)
    except DataError as error:
        raise DataError(f"{origin}: {error}") from error


def _eos_number(config: DataConfig, vocab_size: int) -> int | None:
    """data.eos_token of data without text, where tokens are numbers."""
    if config.eos_token is None:
        return None
    try:
        (eos_id,) = NumberTokenizer(vocab_size).encode(config.eos_token)
    except (DataError, ValueError) as error:
        raise DataError(
            f"data.eos_token={config.eos_token}: without data.tokenizer it is the number of the "
            f"token that ends a document, in 0..{vocab_size - 1}"
        ) from error
    return eos_id
