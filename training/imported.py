"""Starting from a Hugging Face folder, and leaving for one."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from configs import Config, load
from configs.resume import saved_values
from configs.schema import ModelConfig
from model import Pretrained, build_model, save_hf
from model.hf.config_json import RUNNING, read_config
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
_ROTARY = ("rope_theta", "rope_local_theta", "rope_scaling")


def with_model_of_folder(config: Config) -> Config:
    """The config with the model of init.from_hf's config.json, unless it names a model itself.

    How a model is run and trained (dtypes, remat, its losses) is never taken from the folder.
    Rotary frequencies that the command sets are put in place of those of the folder: they stretch
    a model to longer rows and fit any weights. Raises HFError for a model that is not supported.
    """
    folder, chosen = config.init.from_hf, config.model
    if folder is None or _mathematics(chosen) != _mathematics(load([]).model):
        return config
    model = read_config(read_json(Path(folder) / CONFIG), Path(folder).name)
    running = {name: getattr(chosen, name) for name in RUNNING if name not in ("name", "init_std")}
    plain = load([]).model
    running |= {
        name: getattr(chosen, name)
        for name in _ROTARY
        if getattr(chosen, name) != getattr(plain, name)
    }
    moe = dataclasses.replace(
        model.moe,
        correction_rate=chosen.moe.correction_rate,
        balance_loss=chosen.moe.balance_loss or model.moe.balance_loss,
    )
    return dataclasses.replace(config, model=dataclasses.replace(model, **running, moe=moe))


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


def _mathematics(model: ModelConfig) -> ModelConfig:
    """What a model computes, without its rotary frequencies and how it is run and trained."""
    plain = load([]).model
    same = {name: getattr(plain, name) for name in (*RUNNING, *_ROTARY)}
    moe = dataclasses.replace(model.moe, correction_rate=0.0, balance_loss=0.0)
    return dataclasses.replace(model, **same, moe=moe)
