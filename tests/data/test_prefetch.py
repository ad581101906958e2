"""The background iterator: same batches, any start, errors and threads accounted for."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from configs.schema import DataConfig
from data import Batch, Dataset, batches, open_data
from data.dataset import RowChoice


@pytest.fixture
def dataset(data_config: Callable[..., DataConfig]) -> Dataset:
    return open_data(data_config(source="synthetic", epochs=None), "train", 64)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive(), f"{thread.name} was left running"


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_iteration_is_random_access(dataset: Dataset, prefetch: int) -> None:
    with batches(dataset, start_step=5, prefetch=prefetch) as iterator:
        for step in range(5, 25):
            batch = next(iterator)
            for name, expected in dataset.batch(step).items():
                np.testing.assert_array_equal(batch[name], expected)


def test_starts_far_out_without_reading_what_is_before(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dataset.batch(10**9)["tokens"]
    made: list[int] = []
    make = dataset.batch

    def counted(step: int, rows: RowChoice = None) -> Batch:
        made.append(step)
        return make(step, rows)

    monkeypatch.setattr(dataset, "batch", counted)
    with batches(dataset, start_step=10**9, prefetch=1) as iterator:
        np.testing.assert_array_equal(next(iterator)["tokens"], expected)
    assert min(made) == 10**9
    assert len(made) <= 3


def test_ends_with_the_last_batch(data_config: Callable[..., DataConfig]) -> None:
    config = data_config(source="synthetic", batch=100, epochs=2)
    finite = open_data(config, "train", 64)
    assert finite.num_batches is not None
    assert sum(1 for _ in batches(finite, 0, 2)) == finite.num_batches
    assert sum(1 for _ in batches(finite, finite.num_batches - 1, 2)) == 1
    assert list(batches(finite, finite.num_batches, 2)) == []


def test_transform_and_rows(dataset: Dataset) -> None:
    with batches(dataset, 0, 2, lambda batch: batch["tokens"] + 1, slice(1, 2)) as iterator:
        np.testing.assert_array_equal(next(iterator), dataset.batch(0)["tokens"][1:2] + 1)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_comes_at_its_batch_and_ends_the_iterator(dataset: Dataset, prefetch: int) -> None:
    target = dataset.batch(2)["tokens"]

    def fail_at_two(batch: dict[str, np.ndarray]) -> int:
        if (batch["tokens"] == target).all():
            raise RuntimeError("batch two is bad")
        return 1

    iterator = batches(dataset, 0, prefetch, fail_at_two)
    assert [next(iterator), next(iterator)] == [1, 1]
    with pytest.raises(RuntimeError, match="batch two is bad"):
        next(iterator)
    assert list(iterator) == []


def test_close_twice_and_before_the_end(dataset: Dataset) -> None:
    iterator = batches(dataset, 0, 4)
    next(iterator)
    iterator.close()
    iterator.close()
    assert list(iterator) == []
