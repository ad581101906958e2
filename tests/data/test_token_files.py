"""Files of token ids: borders by EOS, ids within the vocabulary, nothing copied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from configs.schema import DataConfig
from data import DataError, Dataset, open_data

EOS = 9


@pytest.fixture
def open_tokens(data_config: Callable[..., DataConfig]) -> Callable[..., Dataset]:
    def make(path: Path, vocab_size: int = 64, **fields: Any) -> Dataset:
        settings = {"seq_len": 16, "batch": 1, "eos_token": "9", "pack": False} | fields
        return open_data(
            data_config(source="tokens", path=str(path), **settings), "train", vocab_size
        )

    return make


def stream(dataset: Dataset) -> list[int]:
    batch = dataset.batch(0)
    size = int(batch["weights"].sum())
    return [int(batch["tokens"][0, 0]), *batch["targets"][0, :size].tolist()]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int64", "uint8", ">i4"])
def test_npy_of_any_integers(
    open_tokens: Callable[..., Dataset], tmp_path: Path, dtype: str
) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2, EOS, 3, EOS, EOS, 4, 5], dtype))
    dataset = open_tokens(tmp_path / "a.npy")
    assert stream(dataset) == [1, 2, EOS, 3, EOS, 4, 5, EOS]
    assert (dataset.stats.documents, dataset.stats.empty_documents) == (3, 1)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_bin_files_in_the_dtype_that_is_said(
    open_tokens: Callable[..., Dataset], tmp_path: Path, dtype: str
) -> None:
    np.array([7, 8, EOS], dtype).tofile(tmp_path / "a.bin")
    np.array([5, 6], dtype).tofile(tmp_path / "b.bin")
    (tmp_path / "meta.txt").write_text("not tokens")
    assert stream(open_tokens(tmp_path, bin_dtype=dtype)) == [7, 8, EOS, 5, 6, EOS]


def test_packed_documents_are_segments(open_tokens: Callable[..., Dataset], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2, 3, EOS, 4, 5, EOS], np.uint16))
    batch = open_tokens(tmp_path / "a.npy", pack=True, seq_len=8).batch(0)
    assert batch["tokens"][0].tolist() == [1, 2, 3, EOS, 4, 5, EOS, 0]
    assert batch["targets"][0].tolist() == [2, 3, EOS, 0, 5, EOS, 0, 0]
    assert batch["segment_ids"][0].tolist() == [1, 1, 1, 1, 2, 2, 2, 0]


@pytest.mark.parametrize(
    ("ids", "bad", "at"), [([1, 64, 70, EOS], 64, 1), ([3, 2, -1], -1, 2), ([1, 2**40], 2**40, 1)]
)
def test_ids_outside_the_vocabulary_are_refused(
    open_tokens: Callable[..., Dataset], tmp_path: Path, ids: list[int], bad: int, at: int
) -> None:
    np.save(tmp_path / "good.npy", np.array([1, 2]))
    np.save(tmp_path / "later.npy", np.array(ids))
    with pytest.raises(DataError) as error:
        open_tokens(tmp_path)
    for part in (
        f"later.npy: token id {bad} at position {at} is not in 0..63",
        "model.vocab_size=64",
        f"from {min(ids)} to {max(ids)}",
        f"data.path={tmp_path}",
    ):
        assert part in str(error.value)


def test_eos_is_the_last_id_or_the_tokenizers_or_the_one_that_is_said(
    open_tokens: Callable[..., Dataset],
    tokenizer_folder: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 63, 2, 266, 3, 9]))
    for fields, expected in [
        ({"eos_token": None, "vocab_size": 512}, 511),
        ({"vocab_size": 512}, 9),
        (
            {"eos_token": None, "vocab_size": 512, "tokenizer": tokenizer_folder(toy_tokenizer())},
            266,
        ),
    ]:
        assert open_tokens(tmp_path / "a.npy", **fields).tokenizer.eos_id == expected
    for wrong in ("600", "</s>", "1 2"):
        with pytest.raises(DataError, match=rf"data\.eos_token={wrong}: .*in 0\.\.511"):
            open_tokens(tmp_path / "a.npy", vocab_size=512, eos_token=wrong)


def test_what_holds_no_tokens_is_refused(
    open_tokens: Callable[..., Dataset], tmp_path: Path
) -> None:
    np.save(tmp_path / "float.npy", np.ones(3))
    np.save(tmp_path / "table.npy", np.ones((2, 3), int))
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "only_eos.npy", np.array([EOS, EOS]))
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "empty.bin").touch()
    (tmp_path / "text.npy").write_text("not an array")
    np.arange(10, 20, dtype=np.uint32).tofile(tmp_path / "wide.bin")
    for name, reason in [
        ("float.npy", r"holds float64 of shape \(3,\); token ids are integers"),
        ("table.npy", r"holds int64 of shape \(2, 3\)"),
        ("object.npy", "cannot read"),
        ("text.npy", "cannot read"),
        ("only_eos.npy", "0 tokens"),
        ("empty.bin", "0 tokens"),
        ("odd.bin", "3 bytes are no whole number of uint16"),
        ("wide.bin", "every other uint16 is 0.*bin_dtype=uint32"),
        ("nowhere.bin", "no such file"),
    ]:
        with pytest.raises(DataError, match=rf"(?s)data\.path=.*{name}.*{reason}"):
            open_tokens(tmp_path / name)


def test_a_changed_id_changes_the_fingerprint(
    open_tokens: Callable[..., Dataset], tmp_path: Path
) -> None:
    fingerprints = set()
    for last in (3, 4, 3):
        np.save(tmp_path / "a.npy", np.array([1, 2, last]))
        fingerprints.add(open_tokens(tmp_path / "a.npy").fingerprint)
    assert len(fingerprints) == 2
