"""Checkpoints that were damaged, cut short or never finished: nothing lost, nothing silent."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from training.checkpoint import CheckpointError, Checkpoints, Restored

SIZE = 4096


def host_state(step: int) -> dict[str, np.ndarray]:
    """Noise that depends on the step alone, too long for TensorStore to keep it in its index."""
    return {"w": np.random.default_rng(step).standard_normal(SIZE).astype(np.float32)}


def state(step: int) -> dict[str, jax.Array]:
    return jax.device_put(host_state(step), jax.devices()[0])


def restore(checkpoints: Checkpoints) -> Restored | None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return checkpoints.restore_latest(
        {"w": jax.ShapeDtypeStruct((SIZE,), jnp.float32, sharding=one)}
    )


def assert_restores(directory: Path, step: int) -> None:
    restored = restore(Checkpoints(directory))
    assert restored is not None
    assert restored.step == step
    np.testing.assert_array_equal(restored.state["w"], host_state(step)["w"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(directory, keep=2) as checkpoints:
        for step in (2, 10):
            checkpoints.save(step, state(step), {})
    return directory


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """A directory of its own with checkpoints 2 and 10."""
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


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
    assert_restores(copied, 2)
    assert "checkpoint 10" in caplog.text
    assert "skipped" in caplog.text


def test_going_on_moves_the_damaged_one_aside_and_saves_that_step_again(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (copied / "10/state/manifest.ocdbt").write_bytes(b"")
    with Checkpoints(copied, keep=2) as checkpoints:
        restore(checkpoints)
        assert checkpoints.steps() == [2, 10], "reading alone changes nothing"
        for step in (6, 10):
            checkpoints.save(step, state(step), {})
    assert checkpoints.steps() == [6, 10]
    assert (copied / "10.damaged/state/_METADATA").is_file()
    assert "10.damaged" in caplog.text
    assert_restores(copied, 10)


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
        restored = restore(checkpoints)
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
        restore(Checkpoints(copied))
    assert restore(Checkpoints(tmp_path / "nowhere")) is None
    assert Checkpoints(tmp_path / "nowhere").peek() is None


ELSEWHERE = """
import os, resource, signal, sys
import jax.numpy as jnp
from training.checkpoint import Checkpoints
import numpy as np
state = lambda step: {"w": jnp.array(np.random.default_rng(step).standard_normal(4096), "float32")}
checkpoints = Checkpoints(sys.argv[1], keep=1)
checkpoints.save(1, state(1), {})
checkpoints.wait()
"""
FULL_DISK = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # no file may grow beyond 100 bytes
try:
    with checkpoints:
        checkpoints.save(2, state(2), {})
except RuntimeError as error:
    sys.exit(str(error))
"""
KILLED = """
checkpoints.save(2, state(2), {})
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_elsewhere(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE + code, str(directory)],
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_failed_save_is_an_error_and_costs_no_checkpoint(tmp_path: Path) -> None:
    result = run_elsewhere(FULL_DISK, tmp_path)
    assert result.returncode == 1
    assert "checkpoint 2 was not saved" in result.stderr
    assert_restores(tmp_path, 1)


def test_a_process_killed_while_saving_leaves_something_to_resume(tmp_path: Path) -> None:
    result = run_elsewhere(KILLED, tmp_path)
    assert result.returncode == -signal.SIGKILL
    assert_restores(tmp_path, max(Checkpoints(tmp_path).steps()))
