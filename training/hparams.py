"""The config as TensorBoard's hyperparameters, in the run's own event file.

No experiment summary is written: TensorBoard then reads keys, values and metrics from the runs
themselves, whatever was swept, and shows the keys that differ first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tensorboardX.proto.api_pb2 import Status
from tensorboardX.proto.plugin_hparams_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

from configs import Config
from configs.schema import key_values

# About the directory or the command, not about what was trained.
_LEFT_OUT = frozenset(
    {"mode", "run", "compile_cache", "checkpoint", "generate", "export", "log", "profile"}
)


def hparams(config: Config) -> Iterator[tuple[str, Any]]:
    """Every key of the config that training may depend on, with its value."""
    pairs = _flat(key_values(config))
    return (pair for pair in pairs if pair[0].split(".")[0] not in _LEFT_OUT)


def session_start(config: Config) -> Summary:
    """The run's hyperparameters."""
    info = SessionStartInfo()
    for key, value in hparams(config):
        if isinstance(value, bool):
            info.hparams[key].bool_value = value
        elif isinstance(value, int | float) and math.isfinite(value):
            info.hparams[key].number_value = value
        else:  # TensorBoard's JSON has no infinities, and its hyperparameters no absence
            info.hparams[key].string_value = "null" if value is None else str(value)
    return _summary("session_start_info", HParamsPluginData(session_start_info=info))


def session_end() -> Summary:
    """The run came to its last step."""
    ended = SessionEndInfo(status=Status.Value("STATUS_SUCCESS"))
    return _summary("session_end_info", HParamsPluginData(session_end_info=ended))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _summary(tag: str, content: HParamsPluginData) -> Summary:
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString())
    return Summary(
        value=[Summary.Value(tag=f"_hparams_/{tag}", metadata=SummaryMetadata(plugin_data=plugin))]
    )
