"""The standard library's sources as data, and what importing the package does."""

import ast
import json.decoder
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs.schema import DataConfig
from data import open_splits
from data.documents import ArrayDocuments, DataError
from data.sources import open_source
from data.split import split_documents
from data.tokenizer import ByteTokenizer, NumberTokenizer

REPOSITORY = Path(__file__).parents[2]


def test_rows_are_text_of_the_library(data_config: Callable[..., DataConfig]) -> None:
    config = data_config(source="stdlib", seq_len=512, batch=4, epochs=None, eval_fraction=0.05)
    train, held_out = open_splits(config, 257)
    assert train.stats.documents > 300
    assert 0.02 < held_out.stats.documents / train.stats.documents < 0.1
    tokens = train.batch(0)["tokens"]
    words = train.tokenizer.decode(tokens.ravel().tolist()).split()
    assert {"import", "def", "return", "if", "self"} & set(words)


def test_modules_are_whole_and_in_one_split(data_config: Callable[..., DataConfig]) -> None:
    documents = open_source(data_config(source="stdlib"), 257).documents
    names = [documents.name(i) for i in range(len(documents.lengths))]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert not [name for name in names if {"test", "site-packages"} & set(name.split("/"))]
    for module in (ast, json.decoder):
        assert module.__file__ is not None
        content = Path(module.__file__).read_bytes()
        at = names.index(module.__name__.replace(".", "/") + ".py")
        assert documents.read(at, 0, len(content)).tobytes() == content
    splits = split_documents(documents, 0.1)
    counted = [split.name(i) for split in splits for i in range(len(split.lengths))]
    assert sorted(counted) == sorted(names)


def test_no_backend_starts_and_grain_waits() -> None:
    script = """
import sys, data
assert "jax" not in sys.modules and "grain" not in sys.modules
from configs.schema import DataConfig
config = DataConfig(source="synthetic", path=None, seq_len=8, batch=2, pack=True, seed=0,
                    epochs=None, eval_fraction=0.1, eval_rows=None, prefetch=2)
with data.batches(data.open_data(config, "train", 64)) as iterator:
    next(iterator)
import jax
jax.config.update("jax_num_cpu_devices", 3)
assert jax.device_count() == 3
"""
    subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "PATH": ""},
        check=True,
    )


def test_byte_tokenizer_round_trip() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é🙂") == [195, 169, 240, 159, 153, 130]
    assert tokenizer.decode([*tokenizer.encode("é🙂"), 256]) == "é🙂"
    assert tokenizer.encode("\udcff") == [255]  # a byte of the command line that is not UTF-8
    assert tokenizer.encode("\ud800") == [ord("?")]
    assert tokenizer.decode([226, 130]) == "\ufffd"
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (257, 256)


def test_number_tokenizer_round_trip() -> None:
    tokenizer = NumberTokenizer(64)
    assert tokenizer.encode("5 6 7") == [5, 6, 7]
    assert tokenizer.decode([5, 6, 7, 63]) == "5 6 7"
    for text in ("five", "64", "-1"):
        with pytest.raises(DataError, match=r"0\.\.63"):
            tokenizer.encode(text)


@pytest.mark.parametrize(("ids", "bad", "at"), [([1, 64, 70], 64, 1), ([3, 2, -1], -1, 2)])
def test_token_ids_outside_the_vocabulary_are_refused(ids: list[int], bad: int, at: int) -> None:
    with pytest.raises(DataError) as error:
        ArrayDocuments([np.array([5]), np.array(ids)], ["a.npy", "b.npy"], "", 64)
    message = str(error.value)
    assert message.startswith(f"b.npy: token id {bad} at position {at} is not in 0..63")
    assert "model.vocab_size=64" in message
    assert f"from {min(ids)} to {max(ids)}" in message
