"""The eval split: apart from the train split, every row once, the same for every batch size."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from configs.schema import DataConfig
from data import Dataset, open_data

VOCAB_SIZE = 257


def scored_targets(dataset: Dataset) -> Counter[tuple[int, int]]:
    """Every scored (input, target) pair of one pass."""
    pairs: Counter[tuple[int, int]] = Counter()
    assert dataset.num_batches is not None
    for step in range(dataset.num_batches):
        batch = dataset.batch(step)
        scored = batch["weights"] > 0
        inputs, targets = batch["tokens"][scored].tolist(), batch["targets"][scored].tolist()
        pairs.update(zip(inputs, targets, strict=True))
    return pairs


@pytest.mark.parametrize("pack", [True, False])
def test_thirteen_rows_whatever_the_batch(
    data_config: Callable[..., DataConfig], pack: bool
) -> None:
    passes = []
    for batch in (1, 4, 8, 13, 16):
        config = data_config(
            source="synthetic", pack=pack, batch=batch, eval_fraction=0.1, eval_rows=13, epochs=None
        )
        dataset = open_data(config, "eval", 64)
        assert dataset.stats.rows == 13
        assert dataset.num_batches == -(-13 // batch)
        rows = sum(
            int(dataset.batch(i)["weights"].any(axis=1).sum()) for i in range(dataset.num_batches)
        )
        assert rows == 13
        passes.append(scored_targets(dataset))
    assert all(one == passes[0] for one in passes)


def test_eval_order_does_not_follow_the_seed(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    path = text_folder({f"{i:02}": bytes([65 + i]) * 11 for i in range(20)})
    one, other = (
        open_data(data_config(path=path, seed=seed, eval_fraction=0.3), "eval", VOCAB_SIZE)
        for seed in (0, 1)
    )
    for step in range(one.num_batches or 0):
        np.testing.assert_array_equal(one.batch(step)["tokens"], other.batch(step)["tokens"])


def test_documents_are_in_one_split_only(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    # Each file has its own letter.
    path = text_folder({f"{i:02}": bytes([65 + i]) * 11 for i in range(20)})
    letters = []
    for split in ("train", "eval"):
        dataset = open_data(data_config(path=path, eval_fraction=0.25), split, VOCAB_SIZE)
        letters.append({x for x, _ in scored_targets(dataset)})
    train, held_out = letters
    assert (len(train), len(held_out)) == (15, 5)
    assert not train & held_out


def test_a_new_file_moves_no_other_file_between_the_splits(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    files = {f"{i:02}": bytes([65 + i]) * 11 for i in range(20)}
    config = data_config(path=text_folder(files), eval_fraction=0.25)
    before = {x for x, _ in scored_targets(open_data(config, "eval", VOCAB_SIZE))}
    text_folder({"new": b"!" * 11})
    after = {x for x, _ in scored_targets(open_data(config, "eval", VOCAB_SIZE))}
    assert after - {ord("!")} <= before
    assert len(after) == 5


def test_one_file_holds_out_its_tail(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    text = bytes(range(200))
    config = data_config(path=text_folder({"a": text}), eval_fraction=0.1, seq_len=300)
    train, held_out = (open_data(config, split, VOCAB_SIZE) for split in ("train", "eval"))
    assert train.batch(0)["tokens"][0, :181].tolist() == [*range(180), 256]
    assert held_out.batch(0)["tokens"][0, :21].tolist() == [*range(180, 200), 256]


@pytest.mark.parametrize(("text", "fraction"), [(b"a" * 100, 0.0), (b"a", 0.1), (b"ab", 0.1)])
def test_nothing_held_out_is_an_eval_split_without_batches(
    data_config: Callable[..., DataConfig],
    text_folder: Callable[..., str],
    text: bytes,
    fraction: float,
) -> None:
    config = data_config(path=text_folder({"a": text}), eval_fraction=fraction)
    dataset = open_data(config, "eval", VOCAB_SIZE)
    assert (dataset.num_batches, dataset.stats.rows, dataset.stats.tokens) == (0, 0, 0)
    assert open_data(config, "train", VOCAB_SIZE).num_batches


def test_a_cap_takes_rows_from_everywhere(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    # A long document and many short ones: the cap must not leave only rows of the long one.
    path = text_folder({"0": b"L" * 800} | {f"{i}": b"s" * 7 for i in range(1, 101)})
    config = data_config(path=path, eval_fraction=0.99, eval_rows=20, pack=True)
    inputs = {x for x, _ in scored_targets(open_data(config, "eval", VOCAB_SIZE))}
    assert inputs == {ord("L"), ord("s")}
