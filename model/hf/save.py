"""From parameters to a Hugging Face folder: file by file, never the whole model on the host."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.model_schema import ModelConfig
from model.hf.config_json import write_config
from model.hf.folder import CONFIG, INDEX, SINGLE
from model.hf.pretrained import Pretrained
from model.hf.tensors import Stored, stored_parameters
from model.parameters import parameter_specs

MAX_FILE_BYTES = 5 * 10**9

_OWN = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


@dataclass(frozen=True)
class _Part:
    """What one parameter puts into a tensor: its layer's values, or those of one expert."""

    stored: Stored
    leaf: int
    layer: int
    expert: int | None


def save_hf(model: Pretrained, path: str | Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
    """Writes config.json and safetensors that transformers loads, in the parameters' dtype.

    An older export in the folder is replaced when the new one is complete. Raises HFError, naming
    the field, when the model's family has no config.json for it. Every process calls it; the first
    one writes.
    """
    config, path = model.model.config, Path(path)
    specs = parameter_specs(model.model)
    written = {**model.carried, **write_config(config)}
    written |= {"dtype": config.param_dtype, "torch_dtype": config.param_dtype}
    tensors = _tensors(config, specs)
    files = _files(tensors, np.dtype(config.param_dtype).itemsize, max_file_bytes)
    fetch = _fetcher(model.parameters)
    first = jax.process_index() == 0
    if first:
        path.mkdir(parents=True, exist_ok=True)
    for name, keys in files.items():
        contents = {key: _tensor(tensors[key], fetch) for key in keys}
        if first:
            write_safetensors(contents, path / f".{name}")
    if first:
        _replace_older(path, list(files))
        _write_json(path / CONFIG, written)
        if list(files) != [SINGLE]:
            weight_map = {key: name for name, keys in files.items() for key in keys}
            _write_json(path / INDEX, {"metadata": {}, "weight_map": weight_map})


def tensors_of(
    config: ModelConfig, specs: Any, parameters: Any
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of the file, one by one, from a tree like `specs`: parameters, or gradients."""
    fetch = _fetcher(parameters)
    for name, parts in _tensors(config, specs).items():
        yield name, _tensor(parts, fetch)


def _tensors(config: ModelConfig, specs: Any) -> dict[str, list[_Part]]:
    """The parts of every tensor, layer by layer."""
    found: dict[str, list[_Part]] = {}
    for leaf, stored in enumerate(stored_parameters(config, specs)):
        for layer, names in enumerate(stored.names):
            for expert, name in enumerate(names):
                part = _Part(stored, leaf, layer, expert if stored.by_expert else None)
                found.setdefault(name, []).append(part)
    return dict(sorted(found.items(), key=lambda item: _by_number(item[0])))


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts layers.9 before layers.10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _files(tensors: dict[str, list[_Part]], itemsize: int, max_bytes: int) -> dict[str, list[str]]:
    """File names and the tensors in each."""
    groups: list[list[str]] = [[]]
    room = max_bytes
    for name, parts in tensors.items():
        size = int(np.prod(parts[0].stored.shape)) * itemsize
        if size > room and groups[-1]:
            groups.append([])
            room = max_bytes
        groups[-1].append(name)
        room -= size
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i + 1:05}-of-{len(groups):05}.safetensors": g for i, g in enumerate(groups)}


def _tensor(parts: list[_Part], fetch: Callable[[int, int | None], np.ndarray]) -> np.ndarray:
    """One tensor of the file, filled by its parameters."""
    tensor: np.ndarray | None = None
    for part in parts:
        stored = part.stored
        values = fetch(part.leaf, part.layer if stored.stacked else None)
        values = values if part.expert is None else values[part.expert]
        if tensor is None:
            tensor = np.empty(stored.shape, values.dtype)
        stored.form.view(tensor, stored.sizes)[...] = values
    assert tensor is not None
    return tensor


def _fetcher(parameters: Any) -> Callable[[int, int | None], np.ndarray]:
    """Brings one parameter, or one layer of a stack, to the host; keeps the last few."""
    leaves = jax.tree.leaves(parameters)
    slice_of = jax.jit(lambda stack, layer: jax.lax.dynamic_index_in_dim(stack, layer, 0, False))

    @functools.lru_cache(maxsize=3)
    def fetch(leaf: int, layer: int | None) -> np.ndarray:
        array = leaves[leaf] if layer is None else slice_of(leaves[leaf], layer)
        if array.is_fully_addressable:
            return np.asarray(array)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(array, tiled=True))

    return fetch


def write_safetensors(contents: dict[str, np.ndarray], path: Path) -> None:
    """Writes tensors by name, for PyTorch to read."""
    from safetensors.numpy import save_file

    save_file(contents, path, metadata={"format": "pt"})
    path.chmod(0o644)


def _replace_older(path: Path, names: list[str]) -> None:
    """Puts the new files in place of those of an older export."""
    for old in _older(path):
        old.unlink()
    for name in names:
        (path / f".{name}").replace(path / name)


def _older(path: Path) -> Iterator[Path]:
    for file in list(path.iterdir()):
        if _OWN.fullmatch(file.name) or file.name == INDEX:
            yield file


def _write_json(path: Path, values: dict[str, Any]) -> None:
    new = path.with_name(f".{path.name}")
    new.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    new.replace(path)
