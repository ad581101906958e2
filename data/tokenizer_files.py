"""The files that a tokenizer comes in, in the layout of Hugging Face: which is which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.documents import DataError
from data.scan import printable, unreadable

_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files around a tokenizer's model say; all but `model` may be missing."""

    model: Path
    """A tokenizer.json, or a SentencePiece .model."""
    special_tokens: Mapping[str, str]
    """`eos_token` -> `</s>`, `bos_token`, `pad_token`, ..."""
    stop_ids: tuple[int, ...]
    """eos_token_id of generation_config.json, else of config.json; it may be a list there."""
    add_bos: bool | None
    """add_bos_token, where it is said."""
    added_tokens: Mapping[str, int]
    """Tokens that the model itself may not have; SentencePiece keeps them apart."""
    chat_template: str | None


def find_tokenizer(path: str) -> TokenizerFiles:
    """The tokenizer at a path: a folder, a tokenizer.json in one, any other .json, or a .model.

    The files of the folder count for the folder and for a model in it by one of the usual names.
    Raises DataError where there is no tokenizer.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        names = ("tokenizer.json", *_SENTENCEPIECE)
        model = next((place / name for name in names if (place / name).is_file()), None)
        if model is None:
            raise DataError(
                f"the folder holds no tokenizer: none of {', '.join(names)} (files of the slow "
                "tokenizers, such as vocab.json and merges.txt, are not read)"
            )
    elif place.is_file():
        model = place
    else:
        raise DataError(f"no such file or folder (in {printable(Path.cwd())})")
    usual = model.name in ("tokenizer.json", *_SENTENCEPIECE)
    return _with_neighbours(model) if usual else TokenizerFiles(model, {}, (), None, {}, None)


def read_json(path: Path) -> Any:
    """The JSON in a file, or {} without the file; DataError for what is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise DataError(f"{printable(path)} is not JSON: {error}") from error


def _with_neighbours(model: Path) -> TokenizerFiles:
    folder = model.parent
    config = _object(folder / "tokenizer_config.json")
    named = {**_object(folder / "special_tokens_map.json"), **config}
    special_tokens = {key: _content(value) for key, value in named.items()}
    ids = [
        _object(folder / name).get("eos_token_id")
        for name in ("generation_config.json", "config.json")
    ]
    stop_ids: Any = next((i for i in ids if i is not None), [])
    add_bos = config.get("add_bos_token")
    return TokenizerFiles(
        model=model,
        special_tokens={k: v for k, v in special_tokens.items() if k.endswith("_token") and v},
        stop_ids=tuple(stop_ids if isinstance(stop_ids, list) else [stop_ids]),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        added_tokens=_added_tokens(folder, config),
        chat_template=_chat_template(folder, config),
    )


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{printable(path)} does not hold a JSON object")
    return value


def _content(value: Any) -> str:
    """The text of a token, given as text or as an object with `content`; else nothing."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, int]:
    added = {token: int(i) for token, i in _object(folder / "added_tokens.json").items()}
    decoder = config.get("added_tokens_decoder") or {}
    return added | {_content(token): int(i) for i, token in decoder.items()}


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or what tokenizer_config.json holds: one template, or several by name,
    of which `default` is the one."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template
