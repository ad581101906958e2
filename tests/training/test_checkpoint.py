"""Checkpoints: every bit on any mesh, and a changed model refused leaf by leaf."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from training.checkpoint import CheckpointError, Checkpoints

ROWS, COLUMNS = 24, 64


class State(NamedTuple):
    step: Any
    parameters: Any
    moments: Any


def host_state(step: int) -> State:
    """A state whose every value is known: it depends on the step alone."""
    rng = np.random.default_rng(step)
    matrix = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    half = rng.standard_normal((8, 16)).astype(jnp.bfloat16)
    return State(
        np.int32(step),
        {"embed": matrix, "layers": [{"w": half}, {"w": half + half}]},
        (rng.standard_normal((ROWS, COLUMNS)).astype(np.float32),),
    )


def mesh(num_devices: int, **sizes: int) -> Mesh:
    devices = np.array(jax.devices()[:num_devices]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes))


def shardings(on: Mesh, spec: PartitionSpec) -> State:
    return jax.tree.map(
        lambda leaf: NamedSharding(on, spec if leaf.ndim == 2 else PartitionSpec()), host_state(0)
    )


def abstract(layout: State) -> State:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        host_state(0),
        layout,
    )


FOUR = shardings(mesh(4, fsdp=4), PartitionSpec("fsdp"))


def save_steps(directory: Path, steps: list[int], keep: int = 10) -> None:
    with Checkpoints(directory, keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, jax.device_put(host_state(step), FOUR), {"tokens": 7 * step})


def assert_bits(state: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: (
            np.testing.assert_array_equal(
                np.asarray(a).view(np.uint8), np.asarray(b)[None].view(np.uint8)[0]
            )
            if a.ndim
            else np.testing.assert_array_equal(a, b)
        ),
        state,
        expected,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 2 and 10; copy before changing them."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    save_steps(directory, [2, 10])
    return directory


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


@pytest.mark.parametrize(
    ("on", "spec"),
    [
        (mesh(4, fsdp=4), PartitionSpec("fsdp")),
        (mesh(1, fsdp=1), PartitionSpec()),
        (mesh(2, data=2), PartitionSpec()),
        (mesh(8, tensor=2, context=4), PartitionSpec("context", "tensor")),
    ],
    ids=["same", "one device", "replicated", "tensor and context"],
)
def test_restores_every_bit_on_any_mesh(saved: Path, on: Mesh, spec: PartitionSpec) -> None:
    wanted = shardings(on, spec)
    restored = Checkpoints(saved).restore_latest(abstract(wanted))
    assert restored is not None
    assert restored.step == 10
    assert restored.metadata == {"tokens": 70}
    assert_bits(restored.state, host_state(10))
    assert jax.tree.map(lambda leaf: leaf.sharding, restored.state) == wanted
    assert jax.tree.map(lambda leaf: leaf.dtype, restored.state) == jax.tree.map(
        lambda leaf: leaf.dtype, host_state(10)
    )


def test_a_restored_state_can_be_donated(saved: Path) -> None:
    restored = Checkpoints(saved).restore_latest(abstract(FOUR))
    assert restored is not None
    before = buffers(restored.state)
    step = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 2, state), donate_argnums=0)
    after = buffers(step(restored.state))
    reused = sum(size for pointer, size in before.items() if pointer in after)
    assert reused >= 0.95 * sum(before.values())


def buffers(state: Any) -> dict[int, int]:
    return {
        shard.data.unsafe_buffer_pointer(): shard.data.nbytes
        for leaf in jax.tree.leaves(state)
        for shard in leaf.addressable_shards
    }


def test_saving_every_step_is_safe_with_donation(tmp_path: Path) -> None:
    """The loop overwrites the state that it has just saved."""
    advance = jax.jit(
        lambda state: jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), state),
        donate_argnums=0,
        out_shardings=FOUR,
    )
    state = jax.device_put(host_state(0), FOUR)
    with Checkpoints(tmp_path / "checkpoints", keep=6) as checkpoints:
        for step in range(6):
            checkpoints.save(step, state, {})
            state = advance(state)
    expected = host_state(0)
    for step in range(6):
        newest = Checkpoints(copy_up_to(tmp_path, step)).restore_latest(abstract(FOUR))
        assert newest is not None
        assert newest.step == step
        assert_bits(newest.state, expected)
        expected = jax.tree.map(lambda leaf: leaf + np.ones_like(leaf), expected)


def copy_up_to(tmp_path: Path, step: int) -> Path:
    directory = tmp_path / f"up_to_{step}"
    directory.mkdir()
    shutil.copytree(tmp_path / "checkpoints" / str(step), directory / str(step))
    return directory


def test_keeps_the_newest_in_numeric_order(tmp_path: Path) -> None:
    save_steps(tmp_path, [8, 9, 10, 100], keep=3)
    assert Checkpoints(tmp_path).steps() == [9, 10, 100]
    assert Checkpoints(tmp_path).peek() == (100, {"tokens": 700})


def test_a_changed_state_is_refused_leaf_by_leaf(saved: Path) -> None:
    wanted = abstract(FOUR)
    embed = wanted.parameters["embed"]
    layers = wanted.parameters["layers"]
    changes: dict[str, Any] = {
        r"parameters/layers/2/w: saved nothing, now bfloat16\[8,16\]": wanted._replace(
            parameters={"embed": embed, "layers": [*layers, layers[0]]}
        ),
        r"parameters/layers/1/w: saved bfloat16\[8,16\], now nothing": wanted._replace(
            parameters={"embed": embed, "layers": layers[:1]}
        ),
        r"parameters/embed: saved float32\[24,64\], now float32\[24,128\]": wanted._replace(
            parameters={"embed": embed.update(shape=(24, 128)), "layers": layers}
        ),
        r"parameters/embed: saved float32\[24,64\], now bfloat16\[24,64\]": wanted._replace(
            parameters={"embed": embed.update(dtype=jnp.bfloat16), "layers": layers}
        ),
        r"step: saved int32\[\], now float32\[\]": wanted._replace(
            step=wanted.step.update(dtype=jnp.float32)
        ),
        r"moments/0: saved float32\[24,64\], now nothing": wanted._replace(moments=()),
    }
    for message, changed in changes.items():
        with pytest.raises(CheckpointError, match=message):
            Checkpoints(saved).restore_latest(changed)


def test_part_of_a_state_can_be_restored(saved: Path) -> None:
    part = {"parameters": abstract(FOUR).parameters}
    restored = Checkpoints(saved).restore_latest(part, partial=True)
    assert restored is not None
    assert_bits(restored.state, {"parameters": host_state(10).parameters})
    part["parameters"]["embed"] = part["parameters"]["embed"].update(shape=(24, 65))
    with pytest.raises(CheckpointError, match="parameters/embed"):
        Checkpoints(saved).restore_latest(part, partial=True)


def test_the_step_counter_stays_an_integer(tmp_path: Path) -> None:
    big = 2**24 + 1
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(big, jax.device_put(host_state(big), FOUR), {})
    restored = Checkpoints(tmp_path).restore_latest(abstract(FOUR))
    assert restored is not None
    assert restored.state.step.dtype == jnp.int32
    assert int(restored.state.step + 1) == 16_777_218


@pytest.mark.parametrize("name", ["ck", "./a b/ck", "größe/ck", "link/ck"])
def test_relative_and_odd_paths(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(name)
    monkeypatch.chdir("/")
    with checkpoints:
        checkpoints.save(1, jax.device_put(host_state(1), FOUR), {})
    assert Checkpoints(tmp_path / name).steps() == [1]


def test_saving_twice_does_nothing_and_going_back_is_refused(copied: Path) -> None:
    state = jax.device_put(host_state(10), FOUR)
    with Checkpoints(copied, keep=1) as checkpoints:
        checkpoints.restore_latest(abstract(FOUR))
        assert not checkpoints.save(10, state, {})
        assert checkpoints.save(11, state, {})
        assert not checkpoints.save(11, state, {})
    with Checkpoints(copied, keep=1) as other, pytest.raises(CheckpointError, match=r"\[11\]"):
        other.save(3, state, {})
    assert other.steps() == [11]


def test_importing_costs_no_backend_and_no_orbax() -> None:
    code = (
        "import sys, training.checkpoint; from jax._src import xla_bridge as x;"
        "assert not x.backends_are_initialized(); assert 'orbax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
