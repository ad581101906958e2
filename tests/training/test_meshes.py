"""A run's losses do not depend on the mesh, the layout, the strategy or the microbatches."""

import functools

import numpy as np
import pytest

from data import open_data
from tests.training.small import small_setup, train_steps

NUM_STEPS = 20
SAME = {
    "context 4 x fsdp 2": (8, ["mesh.context=4", "mesh.fsdp=2"]),
    "tensor 2 x data 2": (4, ["mesh.tensor=2", "mesh.data=2", "mesh.fsdp=1"]),
    "data 8": (8, ["mesh.data=8", "mesh.fsdp=1"]),
    "context 3 x fsdp 2": (6, ["mesh.context=3", "mesh.fsdp=2"]),
    "striped": (4, ["mesh.context=4", "context_parallel.layout=striped"]),
    "contiguous": (4, ["mesh.context=4", "context_parallel.layout=contiguous"]),
    "four microbatches": (2, ["train.grad_accum=4", "mesh.context=2"]),
    "ring": (4, ["mesh.context=4", "context_parallel.strategy=ring"]),
    "ulysses": (4, ["mesh.context=4", "context_parallel.strategy=ulysses"]),
    "unrolled, full remat": (1, ["model.scan_layers=false", "model.remat=full"]),
}


def _losses(num_devices: int, overrides: list[str], pack: bool) -> np.ndarray:
    setup = small_setup(f"data.pack={str(pack).lower()}", *overrides, num_devices=num_devices)
    data = open_data(setup.config.data, "train", setup.config.model.vocab_size)
    _, metrics = train_steps(setup, [data.batch(step) for step in range(NUM_STEPS)])
    return np.array([values["loss"] for values in metrics])


@functools.cache
def _one_device(pack: bool) -> np.ndarray:
    return _losses(1, [], pack)


@pytest.mark.parametrize("name", SAME)
def test_losses_of_twenty_steps_equal_those_of_one_device(name: str) -> None:
    num_devices, overrides = SAME[name]
    losses = _losses(num_devices, overrides, pack=True)
    np.testing.assert_allclose(losses, _one_device(True), rtol=1e-5)
    assert losses[-1] < losses[0]


def test_rows_that_are_cut_and_not_packed_agree_too() -> None:
    losses = _losses(8, ["mesh.context=4", "mesh.fsdp=2"], pack=False)
    np.testing.assert_allclose(losses, _one_device(False), rtol=1e-5)
