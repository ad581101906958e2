"""A folder a page, in which its commands run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax._src import compilation_cache

from tests.docs.inputs import STDLIB, prepare
from tests.docs.trainings import devices_of
from tests.quick_compile import quick_compile

SERVICES = Path(__file__).parents[1] / "training/services"  # wandb and mlflow, to be found only
Reader = Callable[[str], Path]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs that the pages share."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Path) -> Iterator[Reader]:
    """`reader(page)` prepares the page's folder and stands in it, at home there.

    Runs get as many devices as they ask for. The standard library is a small one.
    """

    settings = {
        "jax_compilation_cache_dir": (str(programs), None),
        "jax_persistent_cache_min_compile_time_secs": (0.0, 1.0),
    }

    def stand(page: str) -> Path:
        prepare(page, tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        small = SimpleNamespace(get_path=lambda name: str(tmp_path / STDLIB))
        monkeypatch.setattr("data.sources.sysconfig", small)
        monkeypatch.setattr("training.modes.start_devices", devices_of)
        monkeypatch.syspath_prepend(SERVICES)
        return tmp_path

    for name, (while_reading, _) in settings.items():
        jax.config.update(name, while_reading)
    compilation_cache.reset_cache()
    with quick_compile():
        yield stand
    for name, (_, after) in settings.items():
        jax.config.update(name, after)
    compilation_cache.reset_cache()
