"""Batches: their order, their epochs, and that they depend on seed and step only."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from configs.schema import DataConfig
from data import Dataset, fingerprint_changes, open_data, open_splits

VOCAB_SIZE = 257
FIRST_BYTES = list(range(97, 97 + 13))


@pytest.fixture
def open_rows(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> Callable[..., Dataset]:
    """Opens `num_rows` rows of 8 tokens: file i is 7 times its own letter, and an EOS."""

    def make(num_rows: int, **fields: object) -> Dataset:
        files = {f"{num_rows}/{i}": bytes([FIRST_BYTES[i]]) * 7 for i in range(num_rows)}
        path = f"{text_folder(files)}/{num_rows}"
        return open_data(data_config(path=path, **fields), "train", VOCAB_SIZE)

    return make


def row_ids(batch: dict[str, np.ndarray]) -> list[int]:
    """Which of the files stand in a batch, by the letter; padding rows are left out."""
    real = batch["weights"].any(axis=1)
    return batch["tokens"][real, 0].tolist()


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def test_shapes_and_dtypes(open_rows: Callable[..., Dataset]) -> None:
    batch = open_rows(5, batch=3).batch(0)
    assert {name: (str(x.dtype), x.shape) for name, x in batch.items()} == {
        "tokens": ("int32", (3, 8)),
        "targets": ("int32", (3, 8)),
        "positions": ("int32", (3, 8)),
        "segment_ids": ("int32", (3, 8)),
        "weights": ("float32", (3, 8)),
    }


@pytest.mark.parametrize(("num_rows", "batch"), [(3, 8), (13, 8), (13, 13), (13, 4), (13, 1)])
def test_every_row_comes_once_an_epoch(
    open_rows: Callable[..., Dataset], num_rows: int, batch: int
) -> None:
    dataset = open_rows(num_rows, batch=batch, epochs=2)
    per_epoch = -(-num_rows // batch)
    assert dataset.num_batches == 2 * per_epoch
    for epoch in range(2):
        seen = [
            row
            for step in range(epoch * per_epoch, (epoch + 1) * per_epoch)
            for row in row_ids(dataset.batch(step))
        ]
        assert sorted(seen) == FIRST_BYTES[:num_rows]
    with pytest.raises(IndexError, match="batches"):
        dataset.batch(2 * per_epoch)


def test_rows_that_fill_a_batch_have_no_weight(open_rows: Callable[..., Dataset]) -> None:
    batch = open_rows(3, batch=8).batch(0)
    assert batch["weights"].sum() == 3 * 7
    for name in ("weights", "tokens", "targets", "segment_ids", "positions"):
        assert not batch[name][3:].any(), name


@pytest.mark.parametrize(("num_rows", "batch"), [(3, 8), (13, 8), (5, 5)])
def test_without_epochs_the_rows_flow_on(
    open_rows: Callable[..., Dataset], num_rows: int, batch: int
) -> None:
    dataset = open_rows(num_rows, batch=batch, epochs=None)
    assert dataset.num_batches is None
    stream = [row for step in range(12) for row in row_ids(dataset.batch(step))]
    assert len(stream) == 12 * batch
    for start in range(0, len(stream) - num_rows + 1, num_rows):
        assert sorted(stream[start : start + num_rows]) == FIRST_BYTES[:num_rows]


def test_each_epoch_and_each_seed_has_its_order(open_rows: Callable[..., Dataset]) -> None:
    orders = set()
    for seed in (0, 1, -1, 2**40):
        dataset = open_rows(13, batch=13, epochs=3, seed=seed)
        orders |= {tuple(row_ids(dataset.batch(step))) for step in range(3)}
    assert len(orders) == 12


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("source", ["synthetic", "text"])
def test_any_step_can_be_asked_for_first(
    data_config: Callable[..., DataConfig],
    text_folder: Callable[..., str],
    source: str,
    pack: bool,
) -> None:
    path = text_folder({f"{i}": bytes(range(65, 66 + 3 * i)) for i in range(9)})
    config = data_config(source=source, path=path, pack=pack, epochs=None)
    in_order = open_data(config, "train", VOCAB_SIZE)
    expected = [in_order.batch(step) for step in range(8)]
    again = open_data(config, "train", VOCAB_SIZE)
    for step in (7, 2, 2, 5, 0):
        assert_equal(again.batch(step), expected[step])


def test_slices_of_a_batch_make_up_the_batch(open_rows: Callable[..., Dataset]) -> None:
    dataset = open_rows(13, batch=8, epochs=1)
    for step in range(2):
        whole = dataset.batch(step)
        halves = [dataset.batch(step, slice(0, 4)), dataset.batch(step, slice(4, 8))]
        assert_equal({n: np.concatenate([h[n] for h in halves]) for n in whole}, whole)
        assert_equal(dataset.batch(step, [5, 1]), {n: x[[5, 1]] for n, x in whole.items()})
    assert dataset.batch(0, slice(0, 0))["weights"].shape == (0, 8)


def test_no_row_twice_in_a_batch(open_rows: Callable[..., Dataset]) -> None:
    dataset = open_rows(13, batch=8, epochs=3)
    for step in range(6):
        assert max(Counter(row_ids(dataset.batch(step))).values()) == 1


def test_epoch_counts_passes(open_rows: Callable[..., Dataset]) -> None:
    assert [open_rows(4, batch=2, epochs=None).epoch(step) for step in range(4)] == [0, 0.5, 1, 1.5]
    assert [open_rows(3, batch=2, epochs=2).epoch(step) for step in range(5)] == [0, 0.5, 1, 1.5, 2]
    assert open_rows(3, batch=6, epochs=None).epoch(1) == 2.0


def test_stats_by_hand(open_rows: Callable[..., Dataset]) -> None:
    stats = open_rows(5).stats
    assert (stats.documents, stats.tokens, stats.rows) == (5, 5 * 8, 5)
    assert stats.padding_fraction == 0.0
    assert stats.summary() == "5 documents, 40 tokens in 5 rows (0.0% padding)"


def test_padding_fraction_by_hand(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    # 5 + EOS and 4 + EOS in two rows of 8: 5 of 16 slots are empty.
    config = data_config(path=text_folder({"a": b"aaaaa", "b": b"bbbb"}))
    assert open_data(config, "train", VOCAB_SIZE).stats.padding_fraction == 5 / 16


def test_synthetic_is_learnable_and_within_the_vocabulary(
    data_config: Callable[..., DataConfig],
) -> None:
    config = data_config(source="synthetic", seq_len=64, batch=8, epochs=None)
    batch = open_data(config, "train", 50).batch(0)
    assert batch["tokens"].min() >= 0
    assert batch["tokens"].max() <= 49
    # In all but about 2 of 17 places (a jump before or after) the step is the step before.
    steps = (batch["targets"] - batch["tokens"]) % 49
    inside = (batch["weights"] > 0)[:, 1:] & (batch["segment_ids"][:, 1:] > 0)
    inside &= (batch["positions"][:, 1:] > 0) & (batch["targets"][:, 1:] != 49)
    assert (steps[:, 1:] == steps[:, :-1])[inside].mean() > 0.8


def test_synthetic_follows_its_seed(data_config: Callable[..., DataConfig]) -> None:
    configs = [data_config(source="synthetic", seed=seed) for seed in (3, 3, 4)]
    one, same, other = (open_data(config, "train", 64).batch(0)["tokens"] for config in configs)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_fingerprint_names_what_changed(open_rows: Callable[..., Dataset]) -> None:
    one = open_rows(5).fingerprint
    assert fingerprint_changes(one, open_rows(5, prefetch=7, epochs=4).fingerprint) == []
    changes = fingerprint_changes(one, open_rows(5, seq_len=16).fingerprint)
    assert "seq_len: 8 -> 16" in changes
    assert "seed: 0 -> 1" in fingerprint_changes(one, open_rows(5, seed=1).fingerprint)


def test_one_character_changes_the_batches_and_the_fingerprint(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    configs = [data_config(path=text_folder({"a.txt": text})) for text in (b"abcdef", b"abXdef")]
    text_folder({"a.txt": b"abcdef"})
    before = open_data(configs[0], "train", VOCAB_SIZE)
    tokens = before.batch(0)["tokens"]
    text_folder({"a.txt": b"abXdef"})
    after = open_data(configs[1], "train", VOCAB_SIZE)
    assert (after.batch(0)["tokens"] != tokens).sum() == 1
    assert any(
        change.startswith("content:")
        for change in fingerprint_changes(before.fingerprint, after.fingerprint)
    )


def test_both_splits_are_those_opened_one_by_one(data_config: Callable[..., DataConfig]) -> None:
    config = data_config(source="synthetic", eval_fraction=0.1)
    for split, dataset in zip(("train", "eval"), open_splits(config, 64), strict=True):
        alone = open_data(config, split, 64)  # type: ignore[arg-type]
        assert_equal(dataset.batch(1), alone.batch(1))
        assert dataset.fingerprint == alone.fingerprint
