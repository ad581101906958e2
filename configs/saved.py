"""The config.yaml of a run directory: the resolved, typed config, written to read back equal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from configs.convert import from_tree
from configs.errors import ConfigError
from configs.schema import Config, key_values

NAME = "config.yaml"


def write_config(config: Config, path: str | os.PathLike[str]) -> None:
    """Writes every key of a config as YAML. A reader sees the old file or the new one, whole."""
    path = Path(path)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(f"# The resolved config of this run.\n{to_yaml(config)}", encoding="utf-8")
    new.replace(path)


def to_yaml(config: Config) -> str:
    """Every key of a config as YAML text."""
    return yaml.dump(
        key_values(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000
    )


def read_config(path: str | os.PathLike[str]) -> Config:
    """Reads what `write_config` wrote; raises ConfigError for anything else."""
    config, wrong = from_tree(read_tree(path))
    if wrong:
        raise ConfigError([f"{path}: {problem}" for problem in wrong.values()])
    return config


def read_tree(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The nested mapping in a YAML file; raises ConfigError where there is none."""
    try:
        tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ConfigError([f"{path} cannot be read: {reason}"]) from None
    if not isinstance(tree, Mapping):
        raise ConfigError([f"{path} holds no config"])
    return tree


class _Dumper(yaml.SafeDumper):
    """Quotes text that some YAML readers take for a number or a date: `1e3`, `2024_01_01`."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9_/.-]*", text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)
