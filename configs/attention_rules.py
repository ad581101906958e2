"""Rules on attention: what the model asks of it, against what attention_support.py says it can."""

from __future__ import annotations

from collections.abc import Iterator

from configs.attention_support import Asked, reasons_against
from configs.layer_pattern import parse_pattern
from configs.model_schema import ModelConfig
from configs.rule import Sizes, rule
from configs.schema import Config
from configs.topology import known_platform


@rule(
    "mode",
    "attention.kernel",
    "context_parallel.strategy",
    "context_parallel.layout",
    "mesh.context",
    "mesh.tensor",
    "mesh.simulate",
    "mesh.topology",
    "data.seq_len",
    "data.pack",
    "model.num_layers",
    "model.layer_pattern",
    "model.window",
    "model.sinks",
    "model.attention_soft_cap",
    "model.num_heads",
    "model.head_dim",
    "model.indexer.num_heads",
    "model.indexer.top_k",
    "model.compute_dtype",
)
def _attention(config: Config, sizes: Sizes) -> Iterator[str]:
    yield from attention_problems(config, sizes, known_platform(config))


def attention_problems(config: Config, sizes: Sizes, platform: str | None) -> list[str]:
    """Why attention cannot compute what some layer asks for; `platform` None is not known yet."""
    if config.mode in ("generate", "export"):
        return []  # they attend to a cache, or not at all
    asked = (_asked(config, sizes, platform, window) for window in _windows(config.model))
    return list(dict.fromkeys(reason for one in asked for reason in reasons_against(one)))


def _asked(config: Config, sizes: Sizes, platform: str | None, window: int | None) -> Asked:
    model, parallel = config.model, config.context_parallel
    dtype = None if model.compute_dtype == "auto" else model.compute_dtype
    return Asked(
        kernel=config.attention.kernel,
        strategy=parallel.strategy,
        layout=parallel.layout,
        cp=sizes["context"],
        tensor=sizes["tensor"],
        platform=platform,
        window=window,
        top_k=model.indexer.top_k if model.indexer.num_heads else None,
        segments=config.data.pack,
        sinks=model.sinks,
        soft_cap=model.attention_soft_cap,
        seq_len=config.data.seq_len,
        num_heads=model.num_heads,
        head_dim=model.head_dim,
        dtype=dtype,
    )


def _windows(model: ModelConfig) -> list[int | None]:
    """The windows of the layers, each once; None is a layer without one."""
    try:
        kinds = parse_pattern(model.layer_pattern)[: model.num_layers]
    except ValueError:
        return []  # another rule speaks
    return list(dict.fromkeys(model.window if k.startswith("local") else None for k in kinds))
