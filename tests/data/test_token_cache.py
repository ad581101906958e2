"""The token cache follows every input; without one, nothing is left behind."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from configs.schema import DataConfig
from data import DataError, Dataset, open_data
from data.tokenizing import write_texts


@pytest.fixture
def count_tokenizing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever texts are tokenized and not found in the cache."""
    runs: list[int] = []

    def counted(*args: Any) -> int:
        runs.append(1)
        return write_texts(*args)

    monkeypatch.setattr("data.recipes.write_texts", counted)
    return runs


@pytest.fixture
def open_cached(
    data_config: Callable[..., DataConfig],
    tokenizer_folder: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
    tmp_path: Path,
) -> Callable[..., Dataset]:
    """Opens x.jsonl through a cache, with one of two tokenizers."""
    folders = {
        "a": tokenizer_folder(toy_tokenizer(), "a"),
        "b": tokenizer_folder(toy_tokenizer(["</s>", "<s>"]), "b"),
    }

    def make(tokenizer: str = "a", **fields: Any) -> Dataset:
        settings = {
            "source": "jsonl", "path": str(tmp_path / "x.jsonl"),
            "tokenizer": folders[tokenizer], "token_cache": str(tmp_path / "cache"),
        }  # fmt: skip
        return open_data(data_config(**settings | fields), "train", 512)

    return make


def write(path: Path, first: str, second: str = "w") -> None:
    path.write_text(f'{{"text": "{first}", "body": "{second}"}}\n')


def tokens(dataset: Dataset) -> list[int]:
    batch = dataset.batch(0)
    return batch["tokens"][0][batch["segment_ids"][0] > 0].tolist()


def test_batches_follow_the_inputs(
    open_cached: Callable[..., Dataset], count_tokenizing: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    write(path, "hello")
    assert tokens(open_cached()) == [259, 266]
    assert tokens(open_cached("b")) == [259, 265]
    assert tokens(open_cached(text_field="body")) == [86, 266]
    assert open_cached(seq_len=16, pack=False).batch(0)["tokens"].shape == (2, 16)
    assert len(count_tokenizing) == 3  # rows are no matter of tokens
    before = path.stat()
    write(path, "hella")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert tokens(open_cached()) == [258, 64, 266]
    assert len(count_tokenizing) == 4


def test_a_second_run_reads_what_the_first_wrote(
    open_cached: Callable[..., Dataset], count_tokenizing: list[int], tmp_path: Path
) -> None:
    write(tmp_path / "x.jsonl", "hello é")
    first, second = open_cached(), open_cached()
    assert len(count_tokenizing) == 1
    assert first.fingerprint == second.fingerprint
    assert first.stats == second.stats
    np.testing.assert_array_equal(first.batch(0)["tokens"], second.batch(0)["tokens"])


def test_a_failed_run_leaves_no_entry(
    open_cached: Callable[..., Dataset], count_tokenizing: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fine"}\n{"text": 3}\n')
    for _ in range(2):
        with pytest.raises(DataError, match="holds a number"):
            open_cached()
    assert len(count_tokenizing) == 2
    assert [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()] == []


def test_a_damaged_entry_is_refused_by_name(
    open_cached: Callable[..., Dataset], tmp_path: Path
) -> None:
    write(tmp_path / "x.jsonl", "hello")
    open_cached()
    (entry,) = (entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir())
    (entry / "tokens.bin").write_bytes(b"")
    with pytest.raises(DataError, match=rf"{entry.name} is damaged; delete it"):
        open_cached()
    (entry / "about.json").unlink()
    with pytest.raises(DataError, match=rf"cannot read tokens in .*{entry.name}"):
        open_cached()


def test_a_cache_that_cannot_be_written_is_refused(
    open_cached: Callable[..., Dataset], tmp_path: Path
) -> None:
    write(tmp_path / "x.jsonl", "hello")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot keep tokens in .*data\.token_cache=.*file"):
        open_cached(token_cache=str(tmp_path / "file"))


def test_without_a_cache_nothing_stays(
    open_cached: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    write(tmp_path / "x.jsonl", "hello")
    dataset = open_cached(token_cache=None)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert tokens(dataset) == [259, 266]


def test_who_comes_while_tokens_are_made_waits_for_them(
    open_cached: Callable[..., Dataset], count_tokenizing: list[int], tmp_path: Path
) -> None:
    write(tmp_path / "x.jsonl", "hello" * 1000)
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: open_cached(), range(4)))
    assert len(count_tokenizing) == 1
    assert len({dataset.fingerprint for dataset in opened}) == 1
