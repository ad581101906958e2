"""The safetensors files of a Hugging Face folder: which tensors there are, read slice by slice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.hf.errors import HFError

SINGLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"

_KINDS = {"F32", "F16", "BF16", "F64"}


class Folder:
    """An open folder. A single model.safetensors counts before an index, as in transformers.

    Files that neither names are not looked at. Raises HFError for a folder without weights, and
    for an index that names a file which is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise HFError(f"{path}: there is no such folder")
        self._files = {name: _open(self.path / name) for name in self._names()}
        self._file_of = {
            key: file
            for file in self._files.values()
            for key in file.keys()  # noqa: SIM118
        }

    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return read_json(self.path / CONFIG)

    def keys(self) -> set[str]:
        return set(self._file_of)

    def tensor(self, key: str, shape: tuple[int, ...]) -> Any:
        """A tensor that is read by slicing it; refuses another shape and quantised numbers."""
        found = self._file_of[key].get_slice(key)
        if found.get_dtype() not in _KINDS:
            raise HFError(f"{key} in {self.path} is {found.get_dtype()}: not one of {_KINDS}")
        if tuple(found.get_shape()) != shape:
            raise HFError(
                f"{key} in {self.path} has shape {tuple(found.get_shape())}; config.json makes it "
                f"{shape}"
            )
        return found

    def _names(self) -> Iterable[str]:
        if (self.path / SINGLE).is_file():
            return [SINGLE]
        if not (self.path / INDEX).is_file():
            raise HFError(f"{self.path} has neither {SINGLE} nor {INDEX}")
        weight_map = read_json(self.path / INDEX).get("weight_map", {})
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            raise HFError(f"{self.path}: {INDEX} names {', '.join(missing)}: not there")
        return names


def check_keys(found: set[str], expected: set[str], may_be_left: Iterable[str]) -> list[str]:
    """The tensors that are there and are not read, all of them known to be without effect.

    Raises HFError naming tensors that are missing, and those that nothing reads.
    """
    missing = sorted(expected - found)
    if missing:
        raise HFError(f"tensors are missing: {_some(missing)}")
    patterns = [re.compile(pattern) for pattern in may_be_left]
    left = sorted(found - expected)
    unknown = [key for key in left if not any(p.fullmatch(key) for p in patterns)]
    if unknown:
        raise HFError(f"tensors that this model has no place for: {_some(unknown)}")
    return left


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises HFError where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HFError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise HFError(f"{path} holds no object")
    return value


def _open(path: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise HFError("safetensors is not installed: pip install 'foldtext[hf]'") from None
    try:
        return safe_open(path, "numpy")
    except (SafetensorError, OSError) as error:
        raise HFError(f"{path} cannot be read: {error}") from None


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest
