"""Rules on the model, the data and the schedule that hold on any mesh."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from configs.fields import read
from configs.rule import Sizes, divisors, multiples, rule, trains
from configs.schema import Config

REMAT_NAMES = ("query", "key", "value", "attention_out", "mlp_gate", "mlp_up", "mlp_out")


@rule("model.num_heads", "model.num_kv_heads")
def _grouped_heads(config: Config, _: Sizes) -> Iterator[str]:
    heads, kv_heads = config.model.num_heads, config.model.num_kv_heads
    if heads % kv_heads:
        yield (
            f"model.num_heads={heads} is not a multiple of model.num_kv_heads={kv_heads}; "
            f"model.num_kv_heads={divisors(heads)} would fit"
        )


@rule("model.head_dim")
def _rotary_pairs(config: Config, _: Sizes) -> Iterator[str]:
    head_dim = config.model.head_dim
    if head_dim % 2:
        yield (
            f"model.head_dim={head_dim}: rotary embeddings turn pairs, so it must be a multiple "
            f"of 2; {multiples(head_dim, 2)} would fit"
        )


@rule(
    "model.rope_scaling.type",
    "model.rope_scaling.factor",
    "model.rope_scaling.low_freq_factor",
    "model.rope_scaling.high_freq_factor",
)
def _rope_scaling(config: Config, _: Sizes) -> Iterator[str]:
    scaling, key = config.model.rope_scaling, "model.rope_scaling"
    if scaling.type == "none" and scaling.factor != 1:
        yield (
            f"{key}.factor={scaling.factor} does nothing with {key}.type=none; "
            f"{key}.type=linear, llama3 or yarn uses it"
        )
    if scaling.type == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        yield (
            f"{key}.high_freq_factor={scaling.high_freq_factor} must be above "
            f"{key}.low_freq_factor={scaling.low_freq_factor}"
        )


@rule("model.remat")
def _remat_names(config: Config, _: Sizes) -> Iterator[str]:
    remat = config.model.remat
    names = [name.strip() for name in remat.split(",")]
    if remat not in ("none", "full", "dots") and not set(names) <= set(REMAT_NAMES):
        wrong = ", ".join(name for name in names if name not in REMAT_NAMES)
        yield (
            f"model.remat={remat}: {wrong or 'an empty name'} is unknown; it takes none, full, "
            f"dots, or names of what is kept, such as query,key (of {', '.join(REMAT_NAMES)})"
        )


@rule("mode", "train.steps", "schedule.total_steps", "schedule.warmup_steps")
def _warmup_within(config: Config, _: Sizes) -> Iterator[str]:
    warmup, total = config.schedule.warmup_steps, config.schedule.total_steps
    length = total or config.train.steps
    if warmup > length and trains(config):
        name = "schedule.total_steps" if total else "train.steps"
        yield f"schedule.warmup_steps={warmup} is more than {name}={length}; at most {length} fits"


@rule(
    "mode",
    "train.steps",
    "schedule.name",
    "schedule.total_steps",
    "schedule.warmup_steps",
    "schedule.decay_steps",
)
def _decay_within(config: Config, _: Sizes) -> Iterator[str]:
    schedule, length = config.schedule, config.schedule.total_steps or config.train.steps
    decay = schedule.decay_steps
    if decay is None or not trains(config):
        return
    if schedule.name != "wsd":
        yield (
            f"schedule.decay_steps={decay} is not used by schedule.name={schedule.name}; "
            "schedule=wsd uses it, null does without"
        )
    elif schedule.warmup_steps <= length < schedule.warmup_steps + decay:
        yield (
            f"schedule.warmup_steps={schedule.warmup_steps} + schedule.decay_steps={decay} is more "
            f"than the {length} steps of the schedule; schedule.decay_steps="
            f"{length - schedule.warmup_steps} is the most that fits"
        )


@rule("mode", "train.steps", "profile.start", "profile.steps")
def _profile_within(config: Config, _: Sizes) -> Iterator[str]:
    profile, steps = config.profile, config.train.steps
    if profile.start is not None and trains(config) and profile.start + profile.steps - 1 > steps:
        yield (
            f"profile.start={profile.start} and profile.steps={profile.steps} go past "
            f"train.steps={steps}; profile.start={max(1, steps - profile.steps + 1)} would fit"
        )


@rule("mode", "data.eval_fraction")
def _something_held_out(config: Config, _: Sizes) -> Iterator[str]:
    if config.mode == "eval" and config.data.eval_fraction == 0:
        yield "data.eval_fraction=0: mode=eval needs held-out documents; 0.02 holds out one in 50"
    if trains(config) and config.data.eval_fraction == 1:
        yield "data.eval_fraction=1: must be in [0, 1), or nothing is left to train on; 0.02 fits"


@rule("mode", "generate.prompts")
def _prompts(config: Config, _: Sizes) -> Iterator[str]:
    path = config.generate.prompts
    if path is not None and config.mode == "generate" and not Path(path).is_file():
        yield f"generate.prompts={path}: there is no such file"


@rule("mode", "log.wandb", "log.mlflow")
def _mirrors_installed(config: Config, _: Sizes) -> Iterator[str]:
    for package in ("wandb", "mlflow"):
        asked = config.mode == "train" and read(config, f"log.{package}")
        if asked and importlib.util.find_spec(package) is None:
            yield (
                f"log.{package}=true needs the package {package}, which is not installed; "
                f"pip install -e '.[{package}]' brings it"
            )


@rule("run.name")
def _run_name(config: Config, _: Sizes) -> Iterator[str]:
    name = config.run.name
    if "/" in name or "\\" in name or name.startswith(".") or len(name.encode()) > 200:
        yield (
            f"run.name={name}: a name of at most 200 bytes, without / or \\ and no dot in front; "
            "run.dir takes a path"
        )


@rule("run.dir", "compile_cache")
def _folders(config: Config, _: Sizes) -> Iterator[str]:
    for key in ("run.dir", "compile_cache"):
        path = read(config, key)
        if path is not None and Path(path).exists() and not Path(path).is_dir():
            yield f"{key}={path}: this is a file; a folder is needed"
