"""Data sets of Hugging Face: saved on disk, or from the hub through the package `datasets`."""

from __future__ import annotations

import os
from pathlib import Path

from configs.schema import DataConfig
from data.arrow_tables import TableFiles, open_arrow, open_saved
from data.documents import DataError
from data.extras import need
from data.paths import FileSet
from data.scan import printable
from data.tokenizer_files import read_json


def open_hugging_face(config: DataConfig, columns: list[str] | None) -> TableFiles:
    """data.path, a folder that save_to_disk wrote, or data.hub_name. Raises DataError for neither,
    and for a split that is not there."""
    if config.path is None and config.hub_name is None:
        raise DataError(
            f"data.source={config.source} needs data.path, or data.hub_name=OWNER/NAME of the hub"
        )
    if config.path is None:
        return _from_hub(config, columns)
    folder = Path(config.path).expanduser()
    if not folder.is_dir():
        raise DataError("no such folder; a data set of the hub is named by data.hub_name")
    if (folder / "dataset_dict.json").is_file():
        splits = read_json(folder / "dataset_dict.json").get("splits", [])
        if config.hf_split not in splits:
            raise DataError(
                f"there is no split data.hf_split={config.hf_split}; the splits are "
                f"{', '.join(splits)}"
            )
        folder /= config.hf_split
    if not (folder / "state.json").is_file():
        raise DataError(
            f"{printable(folder)} is no folder that save_to_disk wrote (it has no state.json); "
            "data=parquet and data=jsonl read plain files"
        )
    return open_saved(folder, columns)


def is_saved(folder: Path) -> bool:
    """Whether save_to_disk of the package `datasets` wrote the folder."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _from_hub(config: DataConfig, columns: list[str] | None) -> TableFiles:
    datasets = need("datasets", "huggingface", f"data.hub_name={config.hub_name}")
    if "[" in config.hf_split or "+" in config.hf_split:
        raise DataError(f"data.hf_split={config.hf_split}: only whole splits are read")
    try:
        dataset = datasets.load_dataset(config.hub_name, config.hf_config, split=config.hf_split)
    except Exception as error:  # network, missing repositories, missing splits: all kinds
        raise DataError(str(error)) from error
    paths = [file["filename"] for file in dataset.cache_files]
    root = os.path.commonpath([str(Path(path).parent) for path in paths])
    files = FileSet(Path(root), [os.path.relpath(path, root) for path in paths])
    return open_arrow(files, columns)
