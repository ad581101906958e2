"""Makes data configs and text folders for the tests of the data package."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.schema import DataConfig

EOS = 256

MakeConfig = Callable[..., DataConfig]
MakeText = Callable[[Mapping[str, bytes]], str]


@pytest.fixture
def data_config() -> MakeConfig:
    """Makes a DataConfig; every field may be given by name."""

    def make(**fields: Any) -> DataConfig:
        defaults = {
            "source": "text", "path": None, "seq_len": 8, "batch": 2, "pack": True, "seed": 0,
            "epochs": 1, "eval_fraction": 0.0, "eval_rows": None, "prefetch": 2,
        }  # fmt: skip
        return DataConfig(**(defaults | fields))

    return make


@pytest.fixture
def text_folder(tmp_path: Path) -> MakeText:
    """Writes files, given as {relative path: bytes}, and returns the folder."""

    def make(files: Mapping[str, bytes]) -> str:
        folder = tmp_path / "text"
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        folder.mkdir(exist_ok=True)
        return str(folder)

    return make
