"""Makes data configs, text folders and tokenizers for the tests of the data package."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from configs.schema import DataConfig

EOS = 256

MakeConfig = Callable[..., DataConfig]
MakeText = Callable[[Mapping[str, bytes]], str]


@pytest.fixture
def data_config() -> MakeConfig:
    """Makes a DataConfig; every field may be given by name."""

    def make(**fields: Any) -> DataConfig:
        defaults = {
            "source": "text", "path": None, "seq_len": 8, "batch": 2, "pack": True, "seed": 0,
            "epochs": 1, "eval_fraction": 0.0, "eval_rows": None, "prefetch": 2,
        }  # fmt: skip
        return DataConfig(**(defaults | fields))

    return make


@pytest.fixture
def text_folder(tmp_path: Path) -> MakeText:
    """Writes files, given as {relative path: bytes}, and returns the folder."""

    def make(files: Mapping[str, bytes]) -> str:
        folder = tmp_path / "text"
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        folder.mkdir(exist_ok=True)
        return str(folder)

    return make


TOY_MERGES = [
    ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġ", "Ġ"),
    ("u", "s"), ("us", "e"), ("use", "r"),
]  # fmt: skip


def toy_bpe(special: Iterable[str] = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")) -> Tokenizer:
    """Byte-level BPE: 256 bytes, then nine merges (`hello` is 259, `user` 264), then `special`."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, TOY_MERGES)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, TOY_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([AddedToken(token) for token in special])
    return tokenizer


@pytest.fixture
def toy_tokenizer() -> Callable[..., Tokenizer]:
    return toy_bpe


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Callable[..., str]:
    """Writes a tokenizer as tokenizer.json, and any JSON file that is given by its name."""

    def make(tokenizer: Tokenizer, name: str = "tokenizer", **files: Any) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        for file, content in files.items():
            (folder / f"{file}.json").write_text(json.dumps(content))
        return str(folder)

    return make
