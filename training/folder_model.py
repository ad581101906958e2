"""Which model a run that starts from a Hugging Face folder has: that of its config.json."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs import Config, ConfigError, load
from configs.fields import leaves, read
from configs.layer_pattern import parse_pattern
from configs.model_schema import ModelConfig
from configs.resume import READS_RUN, has_checkpoints, saved_values
from configs.validate import validate
from model import HFError
from model.hf.config_json import RUNNING, meaning, read_config
from model.hf.folder import CONFIG, read_json
from training.imported import starts_from_folder

# Weights fit any value of these keys: how a model is run and trained, how many keys are chosen, and
# rotary frequencies, which stretch it to longer rows.
_RUNNING = frozenset(f"model.{name}" for name in RUNNING)
_TRAINING = frozenset(["model.moe.correction_rate", "model.moe.balance_loss", "model.indexer.loss"])
_ROTARY = frozenset(
    key for key in leaves() if key.startswith(("model.rope_scaling.", "model.rope_theta"))
) | {"model.rope_local_theta"}
_FREE = _RUNNING | _TRAINING | _ROTARY | {"model.indexer.top_k"}
# These count even where the command leaves them out: a folder says nothing of them.
_OF_FOLDTEXT = _RUNNING - {"model.name", "model.init_std"}


def completed(config: Config) -> Config:
    """The config with the model of init.from_hf, if any, checked once more before JAX starts.

    Completing twice changes nothing. Raises ConfigError for what is refused.
    """
    if config.init.from_hf is None:
        return config
    try:
        config = with_model_of_folder(config)
    except HFError as error:
        raise ConfigError([str(error)]) from error
    if problems := validate(config):
        raise ConfigError(problems)
    return config


def with_model_of_folder(config: Config) -> Config:
    """The config with the model of init.from_hf's config.json, unless it names a model itself.

    How the model is run and trained, and rotary frequencies, are as the command sets them. A run
    that nobody named is called after the folder. Raises ConfigError for any other key that the
    command sets to something else than the folder has, HFError for a model that is not supported.
    """
    folder = config.init.from_hf
    if folder is None or _names_a_model(config):
        return config
    whole = replace(config, model=_model_of(folder))
    asked = _asked(config)
    if problems := list(_refused(config, whole, asked)):
        raise ConfigError(problems)
    kept = (_OF_FOLDTEXT | asked) & _FREE
    type_ = "model.rope_scaling.type"
    if type_ in asked and read(config, type_) != read(whole, type_):  # its numbers are others
        kept |= {key for key in _ROTARY if key.startswith("model.rope_scaling.")}
    for key in kept:
        whole = _with(whole, key.split("."), read(config, key))
    if not config.asked.names_run and config.run.name == config.model.name:
        whole = _with(whole, ["run", "name"], _run_name(whole.model))
    return whole


def import_lines(config: Config) -> Iterator[str]:
    """One line that names what a run computes otherwise than the folder's config.json says."""
    folder = config.init.from_hf
    reads_run = config.mode in READS_RUN and not starts_from_folder(config)
    resumes = config.mode == "train" and has_checkpoints(config.run.dir)
    if folder is None or reads_run or resumes:
        return
    try:
        whole = replace(config, model=_model_of(folder))
    except HFError as error:
        yield f"{_who(config)} counts, {CONFIG} of {folder} does not: {error}"
        return
    differing = [
        f"{key.removeprefix('model.')} {_shown(config, key)} (folder {_shown(whole, key)})"
        for key in leaves()
        if key.startswith("model.") and key not in _RUNNING | _TRAINING
        if _counts(config, whole, key) and _differs(config, whole, key)
    ]
    if differing:
        yield f"{_who(config)} differs from {Path(folder) / CONFIG}: {', '.join(differing)}"


def _who(config: Config) -> str:
    """Where the model is from that counts in place of the folder's."""
    if not config.asked.is_whole:
        return "the command"
    is_of_run = saved_values(config.run.dir) is not None
    return f"the run in {config.run.dir}" if is_of_run else f"model={config.model.name}"


def _run_name(model: ModelConfig) -> str:
    """The folder's name where that can be a run's, else the family."""
    return model.name if re.fullmatch(r"[^./\\][^/\\]{0,100}", model.name) else model.family


def _model_of(folder: str) -> ModelConfig:
    return read_config(read_json(Path(folder) / CONFIG), Path(folder).name)


def _names_a_model(config: Config) -> bool:
    """Whether the command, its run or a config of the user's own names a model."""
    if config.asked.is_whole:
        return True
    return "model.name" not in config.asked.keys and config.model.name != _plain().model.name


def _asked(config: Config) -> frozenset[str]:
    """Keys of the model that the command sets, or a config file that it reads."""
    others = (key for key in leaves() if key.startswith("model."))
    return config.asked.keys | {key for key in others if read(config, key) != read(_plain(), key)}


@functools.cache
def _plain() -> Config:
    """The config of a command that says nothing."""
    return load([])


def _refused(config: Config, whole: Config, asked: frozenset[str]) -> Iterator[str]:
    for key in leaves():
        if key in asked - _FREE and _differs(config, whole, key):
            yield (
                f"{key}={_shown(config, key)}: init.from_hf={config.init.from_hf} has "
                f"{_shown(whole, key)}, which its weights go with; leave {key} out, or name a "
                "model, model=NAME, which then counts in place of the folder's"
            )


def _differs(one: Config, other: Config, key: str) -> bool:
    if key == "model.layer_pattern":
        return _kinds(one.model) != _kinds(other.model)
    if key == "model.query_scale":
        return bool(meaning(one.model, "query_scale") != meaning(other.model, "query_scale"))
    return bool(read(one, key) != read(other, key))


def _kinds(model: ModelConfig) -> tuple[str, ...] | str:
    """The kind of every layer; a pattern that nobody can read is only equal to itself."""
    try:
        kinds = parse_pattern(model.layer_pattern)
    except ValueError:
        return model.layer_pattern
    return tuple(kinds[layer % len(kinds)] for layer in range(model.num_layers))


def _counts(one: Config, other: Config, key: str) -> bool:
    """Whether either model computes something with the key's section."""
    name = key.split(".")[1]
    if name == "rope_scaling":
        return {one.model.rope_scaling.type, other.model.rope_scaling.type} != {"none"}
    return meaning(one.model, name) is not None or meaning(other.model, name) is not None


def _with(section: Any, path: list[str], value: Any) -> Any:
    """The section with the value at a path of names replaced."""
    name, *rest = path
    return replace(section, **{name: _with(getattr(section, name), rest, value) if rest else value})


def _shown(config: Config, key: str) -> str:
    value = read(config, key)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
