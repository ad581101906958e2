"""Starting from a Hugging Face folder, and leaving for one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from configs import Config
from configs.resume import saved_values
from model import Pretrained, build_model, save_hf
from model.hf.folder import CONFIG, Folder, read_json
from model.hf.peft import save_peft
from model.hf.pretrained import carried_keys, load_parameters
from model.lora import factors_only, merged
from training.setup import Setup

_BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def read_folder(setup: Setup) -> Any:
    """The parameters in init.from_hf, each device's slices straight from the files."""
    folder = setup.config.init.from_hf
    assert folder is not None
    return load_parameters(Folder(folder), setup.model, setup.mesh)


def starts_from_folder(config: Config) -> bool:
    """Whether eval, generate and export read init.from_hf: there is no run to read."""
    return config.init.from_hf is not None and saved_values(config.run.dir) is None


def write_folder(setup: Setup, parameters: Any, run_dir: Path) -> Path:
    """Writes export.path, with what belongs beside the weights of the folder the run began with."""
    config, model, specs = setup.config, setup.model, setup.specs.parameters
    path = Path(config.export.path or "")
    saved = saved_values(run_dir) or {"init.from_hf": config.init.from_hf}
    origin = saved.get("init.from_hf")
    if config.export.form == "peft":
        factors = (factors_only(specs), factors_only(parameters))
        save_peft(config.model, config.adapter, factors, path, origin)
        return path
    if config.adapter.name != "none":
        parameters = merged(parameters, specs, config.adapter)
        platform = setup.mesh.devices.flat[0].platform
        model = build_model(config.model, model.placement, platform)
    if origin is None or not (Path(origin) / CONFIG).is_file():
        save_hf(Pretrained(model, parameters), path)
        return path
    carried = carried_keys(read_json(Path(origin) / CONFIG))
    save_hf(Pretrained(model, parameters, carried), path)
    for name in _BESIDE:
        if (Path(origin) / name).is_file():
            shutil.copyfile(Path(origin) / name, path / name)
    return path
