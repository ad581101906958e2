"""Rules on the parts of a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from configs.layer_pattern import parse_pattern
from configs.model_schema import ModelConfig
from configs.resume import has_checkpoints
from configs.rule import Sizes, divisors, rule
from configs.schema import Config


@rule("model.layer_pattern", "model.window", "model.num_layers")
def _pattern(config: Config, _: Sizes) -> Iterator[str]:
    model = config.model
    try:
        kinds = parse_pattern(model.layer_pattern)
    except ValueError as error:
        yield f"model.layer_pattern={model.layer_pattern}: {error}"
        return
    local = any(kind.startswith("local") for kind in kinds[: model.num_layers])
    if local and model.window is None:
        yield (
            f"model.window=null: model.layer_pattern={model.layer_pattern} has local layers, which "
            "need a number of tokens; model.window=4096 would do"
        )
    if model.window is not None and not local:
        yield (
            f"model.window={model.window} is used by no layer of "
            f"model.layer_pattern={model.layer_pattern}; null does without, local layers use it"
        )


@rule(
    "model.latent.kv_rank",
    "model.latent.query_rank",
    "model.latent.nope_dim",
    "model.latent.rope_dim",
    "model.head_dim",
    "model.num_heads",
    "model.num_kv_heads",
    "model.qk_norm",
    "model.sinks",
)
def _latent(config: Config, _: Sizes) -> Iterator[str]:
    model, latent = config.model, config.model.latent
    if latent.kv_rank is None:
        if latent.query_rank is not None:
            yield (
                f"model.latent.query_rank={latent.query_rank} is used by latent attention only; "
                "model.latent.kv_rank switches it on, null does without"
            )
        return
    if model.head_dim != latent.nope_dim + latent.rope_dim:
        yield (
            f"model.head_dim={model.head_dim}: with model.latent.kv_rank set it must be "
            f"model.latent.nope_dim({latent.nope_dim}) + model.latent.rope_dim({latent.rope_dim}) "
            f"= {latent.nope_dim + latent.rope_dim}"
        )
    if latent.rope_dim % 2:
        yield f"model.latent.rope_dim={latent.rope_dim}: pairs are turned, so it must be even"
    if model.num_kv_heads != model.num_heads:
        yield (
            f"model.num_kv_heads={model.num_kv_heads}: latent attention has a key for every query "
            f"head; model.num_kv_heads={model.num_heads} would fit"
        )
    if model.qk_norm != "none" or model.sinks:
        yield (
            f"model.qk_norm={model.qk_norm} model.sinks={model.sinks}: latent attention "
            "(model.latent.kv_rank) has neither; none and false would fit"
        )


@rule(
    "model.indexer.num_heads",
    "model.indexer.head_dim",
    "model.indexer.loss",
    "model.latent.kv_rank",
    "model.latent.query_rank",
    "model.latent.rope_dim",
)
def _indexer(config: Config, _: Sizes) -> Iterator[str]:
    indexer, latent = config.model.indexer, config.model.latent
    if indexer.num_heads == 0:
        if indexer.loss:
            yield (
                f"model.indexer.loss={indexer.loss} trains an indexer that is not there "
                "(model.indexer.num_heads=0); 0 does without"
            )
        return
    name = f"model.indexer.num_heads={indexer.num_heads}"
    if latent.kv_rank is None or latent.query_rank is None:
        yield (
            f"{name}: an indexer reads the latent of the queries; model.latent.kv_rank="
            f"{latent.kv_rank} and model.latent.query_rank={latent.query_rank} have to be widths; "
            "model.indexer.num_heads=0 does without"
        )
    elif indexer.head_dim < latent.rope_dim:
        yield (
            f"model.indexer.head_dim={indexer.head_dim}: model.latent.rope_dim({latent.rope_dim}) "
            f"of it are rotated; {latent.rope_dim} or more would fit"
        )


@rule(
    "model.moe.num_experts",
    "model.moe.experts_per_token",
    "model.moe.expert_dim",
    "model.moe.num_groups",
    "model.moe.top_groups",
    "model.moe.group_score",
    "model.moe.correction_bias",
    "model.moe.correction_rate",
)
def _experts(config: Config, _: Sizes) -> Iterator[str]:
    moe, key = config.model.moe, "model.moe"
    if moe.num_experts == 0:
        return
    if moe.expert_dim == 0:
        yield f"{key}.expert_dim=0: {key}.num_experts={moe.num_experts} need a width"
    if moe.num_experts % moe.num_groups:
        yield (
            f"{key}.num_groups={moe.num_groups} does not divide {key}.num_experts="
            f"{moe.num_experts}; {divisors(moe.num_experts)} would fit"
        )
        return
    if moe.top_groups > moe.num_groups:
        yield f"{key}.top_groups={moe.top_groups} is more than {key}.num_groups={moe.num_groups}"
    size = moe.num_experts // moe.num_groups
    if moe.experts_per_token > size * moe.top_groups:
        yield (
            f"{key}.experts_per_token={moe.experts_per_token}: a token can choose among "
            f"{size * moe.top_groups} experts ({key}.num_experts({moe.num_experts}) / "
            f"{key}.num_groups({moe.num_groups}) * {key}.top_groups({moe.top_groups})) at most"
        )
    if moe.num_groups > 1 and moe.group_score == "top2_sum" and size < 2:
        yield f"{key}.group_score=top2_sum: {key}.num_groups={moe.num_groups} leave one expert each"
    if moe.correction_rate and not moe.correction_bias:
        yield (
            f"{key}.correction_rate={moe.correction_rate} moves a bias that is not there; "
            f"{key}.correction_bias=true adds it"
        )


@rule("model.rope_local_theta", "model.layer_pattern", "model.latent.kv_rank")
def _local_theta(config: Config, _: Sizes) -> Iterator[str]:
    model = config.model
    if model.rope_local_theta is not None and "local" not in model.layer_pattern:
        yield (
            f"model.rope_local_theta={model.rope_local_theta} is used by no layer of "
            f"model.layer_pattern={model.layer_pattern}; null does without"
        )


@rule("init.from_hf")
def _hugging_face_folder(config: Config, _: Sizes) -> Iterator[str]:
    folder = config.init.from_hf
    if folder is not None and not (Path(folder) / "config.json").is_file():
        yield f"init.from_hf={folder}: a folder with config.json and safetensors files is needed"


@rule("mode", "init.from_hf", "run.dir")
def _safetensors_installed(config: Config, _: Sizes) -> Iterator[str]:
    if config.init.from_hf is None or config.mode in ("plan", "compile"):
        return
    if not has_checkpoints(config.run.dir) and importlib.util.find_spec("safetensors") is None:
        yield (
            f"init.from_hf={config.init.from_hf} needs the package safetensors, which is not "
            "installed; pip install -e '.[hf]' brings it"
        )


@rule("mode", "export.path")
def _export_path(config: Config, _: Sizes) -> Iterator[str]:
    path, exports = config.export.path, config.mode == "export"
    if exports and path is None:
        yield "export.path=null: mode=export needs a folder to write; export.path=DIR"
    if exports and path is not None and Path(path).exists() and not Path(path).is_dir():
        yield f"export.path={path}: this is a file; a folder is needed"


def adapter_targets(model: ModelConfig) -> list[str]:
    """What may have factors: the projections of a model, all of them together, and experts."""
    latent = model.latent
    if latent.kv_rank is None:
        names = ["query", "key", "value", "out"]
    else:
        query = ["query"] if latent.query_rank is None else ["query_down", "query_up"]
        names = [*query, "kv_down", "kv_up", "out"]
    if not model.moe.num_experts or model.moe.dense_layers or model.moe.shared_dim:
        names += ["gate", "up", "down"]
    return [*names, "all", "experts"] if model.moe.num_experts else [*names, "all"]


@rule("adapter.targets", "model.moe.num_experts", "model.latent.kv_rank")
def _targets(config: Config, _: Sizes) -> Iterator[str]:
    targets, legal = config.adapter.targets, adapter_targets(config.model)
    if config.adapter.name == "none":
        return
    names = [name.strip() for name in targets.split(",")]
    wrong = [name or "an empty name" for name in names if name not in legal]
    if wrong:
        yield (
            f"adapter.targets={targets}: this model has no {', '.join(wrong)}; it has "
            f"{', '.join(legal)}"
        )


@rule("mode", "adapter.name", "export.form")
def _factors_to_export(config: Config, _: Sizes) -> Iterator[str]:
    if config.export.form == "peft" and config.adapter.name == "none":
        yield "export.form=peft: this run has no adapter (adapter=none); export.form=merged"
