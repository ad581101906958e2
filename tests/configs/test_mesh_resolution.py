"""Axis sizes meet devices: -1 is filled in before any rule reads it."""

from dataclasses import replace

import pytest

from configs import ConfigError, load
from configs.validate import axis_sizes, resolve, validate_mesh


@pytest.mark.parametrize(
    ("overrides", "num_devices", "sizes"),
    [
        ([], 1, (1, 1, 1, 1, 1)),
        ([], 8, (1, 8, 1, 1, 1)),
        (["mesh.context=4"], 8, (1, 2, 1, 4, 1)),
        (["mesh.data=-1", "mesh.context=2"], 8, (4, 1, 1, 2, 1)),
        (["mesh.context=-1"], 4, (1, 1, 1, 4, 1)),
        (["mesh.fsdp=2", "mesh.data=-1"], 8, (4, 2, 1, 1, 1)),
        (["mesh.tensor=2"], 8, (1, 4, 1, 1, 2)),
        (
            ["mesh.expert=2", "model.moe.num_experts=4", "model.moe.expert_dim=8"],
            8,
            (1, 4, 2, 1, 1),
        ),
        (["mesh=replicated"], 8, (8, 1, 1, 1, 1)),
        (["mesh=v5p_128"], 128, (1, 8, 1, 16, 1)),
    ],
)
def test_the_open_axis_takes_what_is_left(overrides, num_devices, sizes):
    resolved = resolve(load(overrides), num_devices)
    assert tuple(axis_sizes(resolved).values()) == sizes
    assert resolve(resolved, num_devices) == resolved


def test_an_axis_that_was_filled_in_is_an_axis_that_was_set():
    filled = resolve(load(["mesh.context=-1", "run.dir=x"]), 4)
    assert filled == resolve(load(["mesh.context=4", "run.dir=x"]), 4)


@pytest.mark.parametrize(
    ("overrides", "num_devices", "named"),
    [
        (["mesh.data=3"], 8, ["data(3)", "8 devices"]),
        (["mesh.fsdp=1"], 8, ["8 devices", "would fit"]),
        (["mesh.context=-1", "data.seq_len=12"], 4, ["seq_len=12", "context=4", "8 or 16"]),
        (["data.batch=6"], 4, ["batch=6", "fsdp(4)"]),
        (["mesh.tensor=-1"], 3, ["num_heads=8", "tensor=3"]),
        (["context_parallel=ulysses", "mesh.context=-1"], 3, ["context=3", "1, 2, 4, 8"]),
    ],
)
def test_what_does_not_fit_the_devices_is_refused_with_both_numbers(overrides, num_devices, named):
    config = load(overrides)
    text = "\n".join(validate_mesh(config, num_devices))
    assert all(name in text for name in named), text
    with pytest.raises(ConfigError):
        resolve(config, num_devices)


# (query heads, key/value heads, tensor, context): FAULTS CP-11 and the cases around it.
@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "context", "fits"),
    [
        (8, 2, 1, 4, True),
        (8, 8, 1, 4, True),
        (6, 2, 1, 4, False),
        (12, 6, 1, 4, True),  # key/value heads are repeated until they divide
        (8, 4, 2, 4, True),
        (8, 4, 2, 8, False),
        (8, 1, 1, 8, True),
    ],
)
def test_ulysses_needs_heads_that_divide(heads, kv_heads, tensor, context, fits):
    shape = [f"model.num_heads={heads}", f"model.num_kv_heads={kv_heads}", "mesh.fsdp=1"]
    axes = [f"mesh.tensor={tensor}", f"mesh.context={context}"]
    try:
        load(["context_parallel=ulysses", *shape, *axes])
    except ConfigError as error:
        assert not fits
        assert f"num_heads({heads})" in str(error)
        assert f"mesh.context={context}" in str(error)
    else:
        assert fits


def test_generation_needs_no_rows_that_divide():
    config = load(["data.batch=6"])
    assert validate_mesh(config, 4) != []
    assert validate_mesh(replace(config, mode="generate"), 4) == []
