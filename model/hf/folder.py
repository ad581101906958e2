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

    Files that neither names are not looked at, and a tensor is read from the file that the index
    names. Raises HFError for a folder without weights, and for an index that names a file or a
    tensor which is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise HFError(f"{path}: there is no such folder")
        if (self.path / SINGLE).is_file():
            file = _open(self.path / SINGLE)
            self._file_of = dict.fromkeys(file.keys(), file)
        else:
            self._file_of = self._by_index()

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

    def _by_index(self) -> dict[str, Any]:
        """The open file of every tensor; of one in several files, that which the index names."""
        if not (self.path / INDEX).is_file():
            raise HFError(f"{self.path} has neither {SINGLE} nor {INDEX}")
        weight_map = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(map(_is_name, weight_map.values())):
            raise HFError(f"{self.path / INDEX} has no weight_map from tensors to file names")
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            raise HFError(f"{self.path}: {INDEX} names {', '.join(missing)}: not there")
        files = {name: _open(self.path / name) for name in names}
        held = {name: set(file.keys()) for name, file in files.items()}
        lost = [key for key, name in weight_map.items() if key not in held[name]]
        if lost:
            raise HFError(f"{self.path}: {INDEX} names tensors that are not there: {_some(lost)}")
        found = {key: files[name] for name in names for key in held[name]}
        return found | {key: files[name] for key, name in weight_map.items()}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and Path(value).name == value


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
        raise HFError("safetensors is not installed: pip install -e '.[hf]' brings it") from None
    try:
        return safe_open(path, "numpy")
    except (SafetensorError, OSError) as error:
        raise HFError(f"{path} cannot be read: {error}") from None


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest
