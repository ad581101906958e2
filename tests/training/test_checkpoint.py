"""Checkpoints: exact round trips on any mesh, and nothing lost to damage, failure or a change."""

from __future__ import annotations

import shutil
import signal
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


def damage_kinds() -> list[Any]:
    files = {
        "record": "metadata/metadata",
        "tree": "state/_METADATA",
        "manifest": "state/manifest.ocdbt",
        "index": "state/d/*",
        "arrays": "state/ocdbt.process_0/d/*",
        "list": "state/files.json",
    }
    return [pytest.param(pattern, id=name) for name, pattern in files.items()]


@pytest.mark.parametrize("damage", ["empty", "half", "flipped", "deleted"])
@pytest.mark.parametrize("pattern", damage_kinds())
def test_a_damaged_newest_checkpoint_falls_back(
    copied: Path, pattern: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = max((copied / "10").glob(pattern), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    if damage == "deleted":
        file.unlink()
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    restored = Checkpoints(copied).restore_latest(abstract(FOUR))
    assert restored is not None
    assert restored.step == 2
    assert_bits(restored.state, host_state(2))
    assert "checkpoint 10" in caplog.text
    assert "skipped" in caplog.text


def test_going_on_moves_the_damaged_one_aside_and_saves_that_step_again(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (copied / "10/state/manifest.ocdbt").write_bytes(b"")
    with Checkpoints(copied, keep=2) as checkpoints:
        checkpoints.restore_latest(abstract(FOUR))
        assert checkpoints.steps() == [2, 10], "reading alone changes nothing"
        for step in (6, 10):
            checkpoints.save(step, jax.device_put(host_state(step), FOUR), {})
    assert checkpoints.steps() == [6, 10]
    assert (copied / "10.damaged/state/_METADATA").is_file()
    assert "10.damaged" in caplog.text
    restored = Checkpoints(copied).restore_latest(abstract(FOUR))
    assert restored is not None
    assert restored.step == 10
    assert_bits(restored.state, host_state(10))


def test_other_things_in_the_directory_do_no_harm(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (copied / "50").mkdir()
    (copied / "99.orbax-checkpoint-tmp-1/state").mkdir(parents=True)
    (copied / "tensorboard").mkdir()
    (copied / "notes.txt").write_text("mine")
    (copied / "10/commit_success.txt").unlink()
    (copied / "10/_CHECKPOINT_METADATA").unlink()
    with Checkpoints(copied, keep=3) as checkpoints:
        restored = checkpoints.restore_latest(abstract(FOUR))
        assert restored is not None
        assert restored.step == 10
        assert "checkpoint 50" in caplog.text
        checkpoints.save(11, restored.state, {})
    assert checkpoints.steps() == [2, 10, 11]
    assert (copied / "notes.txt").read_text() == "mine"
    assert (copied / "tensorboard").is_dir()
    assert not list(copied.glob("*tmp*")), "what a killed save left is removed"


def test_no_readable_checkpoint_is_refused_and_none_at_all_is_not(
    copied: Path, tmp_path: Path
) -> None:
    for step in (2, 10):
        (copied / f"{step}/state/_METADATA").write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"10: .*_METADATA has 1 bytes.*; 2: "):
        Checkpoints(copied).restore_latest(abstract(FOUR))
    assert Checkpoints(tmp_path / "nowhere").restore_latest(abstract(FOUR)) is None
    assert Checkpoints(tmp_path / "nowhere").peek() is None


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


ELSEWHERE = """
import os, resource, signal, sys
import jax.numpy as jnp
from training.checkpoint import Checkpoints
state = {"w": jnp.arange(4096.0)}
checkpoints = Checkpoints(sys.argv[1], keep=1)
checkpoints.save(1, state, {})
checkpoints.wait()
"""
FULL_DISK = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # no file may grow beyond 100 bytes
try:
    with checkpoints:
        checkpoints.save(2, state, {})
except RuntimeError as error:
    sys.exit(str(error))
"""
KILLED = """
checkpoints.save(2, state, {})
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_elsewhere(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE + code, str(directory)],
        check=False,
        capture_output=True,
        text=True,
    )


def restored_vector(directory: Path) -> tuple[int, np.ndarray]:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {"w": jax.ShapeDtypeStruct((4096,), jnp.float32, sharding=one)}
    restored = Checkpoints(directory).restore_latest(wanted)
    assert restored is not None
    return restored.step, np.asarray(restored.state["w"])


def test_a_failed_save_is_an_error_and_costs_no_checkpoint(tmp_path: Path) -> None:
    result = run_elsewhere(FULL_DISK, tmp_path)
    assert result.returncode == 1
    assert "checkpoint 2 was not saved" in result.stderr
    step, values = restored_vector(tmp_path)
    assert step == 1
    np.testing.assert_array_equal(values, np.arange(4096.0))


def test_a_process_killed_while_saving_leaves_something_to_resume(tmp_path: Path) -> None:
    result = run_elsewhere(KILLED, tmp_path)
    assert result.returncode == -signal.SIGKILL
    step, values = restored_vector(tmp_path)
    assert step in (1, 2)
    np.testing.assert_array_equal(values, np.arange(4096.0))


def test_importing_costs_no_backend_and_no_orbax() -> None:
    code = (
        "import sys, training.checkpoint; from jax._src import xla_bridge as x;"
        "assert not x.backends_are_initialized(); assert 'orbax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
