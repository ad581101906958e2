"""Makes data configs, text folders and tokenizers for the tests of the data package."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from configs.schema import DataConfig
from data import Dataset, open_data

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


@pytest.fixture
def open_records(data_config: Callable[..., DataConfig]) -> Callable[..., Dataset]:
    """Opens a source over bytes, joined, in one row of 64 tokens."""

    def make(source: str, path: Path, **fields: Any) -> Dataset:
        settings = {"seq_len": 64, "pack": False, "batch": 1} | fields
        return open_data(data_config(source=source, path=str(path), **settings), "train", 257)

    return make


@pytest.fixture
def documents_in() -> Callable[[Dataset], list[bytes]]:
    """Reads the documents of a data set of bytes that has one joined row."""

    def read(dataset: Dataset) -> list[bytes]:
        batch = dataset.batch(0)
        size = int(batch["weights"].sum())
        stream = [int(batch["tokens"][0, 0]), *batch["targets"][0, :size].tolist()]
        assert stream.pop() == EOS
        return bytes(255 if token == EOS else token for token in stream).split(b"\xff")

    return read


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture
def open_chat(data_config: Callable[..., DataConfig], tmp_path: Path) -> Callable[..., Dataset]:
    """Opens conversations, packed, in rows of 32."""

    def make(*records: dict[str, Any], **fields: Any) -> Dataset:
        path = tmp_path / "chat.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        settings = {"path": str(path), "seq_len": 32, "batch": 1} | fields
        return open_data(data_config(source="chat", **settings), "train", 512)

    return make


@pytest.fixture
def chat_tokenizer(
    tokenizer_folder: Callable[..., str], toy_tokenizer: Callable[..., Tokenizer]
) -> Callable[[str | None], str]:
    """A folder with the toy tokenizer and a chat template."""

    def make(template: str | None) -> str:
        config = SPECIAL | ({"chat_template": template} if template else {})
        return tokenizer_folder(toy_tokenizer(), tokenizer_config=config)

    return make
