"""The range of every numeric key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from configs.fields import leaves, read
from configs.mesh_axes import FILL
from configs.schema import Config


@dataclass(frozen=True)
class Range:
    """`low` and `high` belong to the range unless `open_low` or `open_high`; None has no end."""

    low: float = 0
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    also: int | None = None

    def holds(self, value: float) -> bool:
        if value == self.also:
            return True
        if value < self.low or (self.open_low and value == self.low):
            return False
        if self.high is None:
            return True
        return value < self.high or (value == self.high and not self.open_high)

    def __str__(self) -> str:
        """`at least 1`, `above 0`, `in [0, 1)`, `at least 1, or -1`."""
        if self.high is not None:
            brackets = "(["[not self.open_low], ")]"[not self.open_high]
            text = f"in {brackets[0]}{self.low}, {self.high}{brackets[1]}"
        else:
            text = f"above {self.low}" if self.open_low else f"at least {self.low}"
        return text if self.also is None else f"{text}, or {self.also}"


_COUNT = Range(low=1)
_ANY = Range(low=0)
_POSITIVE = Range(low=0, open_low=True)
_DECAY = Range(low=0, high=1, open_high=True)
_SEED = Range(low=0, high=2**32 - 1)
_AXIS = Range(low=1, also=FILL)

RANGES: dict[str, Range] = {
    "seed": _SEED,
    "model.vocab_size": Range(low=2),
    "model.num_layers": _COUNT,
    "model.embed_dim": _COUNT,
    "model.mlp_dim": _COUNT,
    "model.num_heads": _COUNT,
    "model.num_kv_heads": _COUNT,
    "model.head_dim": Range(low=2),
    "model.rope_theta": Range(low=1, open_low=True),
    "model.rope_scaling.factor": _COUNT,
    "model.rope_scaling.original_seq_len": _COUNT,
    "model.rope_scaling.low_freq_factor": _POSITIVE,
    "model.rope_scaling.high_freq_factor": _POSITIVE,
    "model.rope_scaling.beta_fast": _POSITIVE,
    "model.rope_scaling.beta_slow": _POSITIVE,
    "model.rope_scaling.attention_factor": _POSITIVE,
    "model.rope_scaling.mscale": _POSITIVE,
    "model.rope_scaling.mscale_all_dim": _POSITIVE,
    "model.rope_local_theta": Range(low=1, open_low=True),
    "model.window": _COUNT,
    "model.latent.kv_rank": _COUNT,
    "model.latent.query_rank": _COUNT,
    "model.latent.nope_dim": _COUNT,
    "model.latent.rope_dim": Range(low=2),
    "model.latent.value_dim": _COUNT,
    "model.indexer.num_heads": Range(low=0),
    "model.indexer.head_dim": _COUNT,
    "model.indexer.top_k": _COUNT,
    "model.indexer.loss": Range(low=0),
    "model.query_scale": _POSITIVE,
    "model.attention_soft_cap": _POSITIVE,
    "model.logit_soft_cap": _POSITIVE,
    "model.activation_limit": _POSITIVE,
    "model.moe.num_experts": _ANY,
    "model.moe.experts_per_token": _COUNT,
    "model.moe.expert_dim": _ANY,
    "model.moe.shared_dim": _ANY,
    "model.moe.dense_layers": _ANY,
    "model.moe.weight_scale": _POSITIVE,
    "model.moe.num_groups": _COUNT,
    "model.moe.top_groups": _COUNT,
    "model.moe.correction_rate": _ANY,
    "model.moe.balance_loss": _ANY,
    "model.norm_eps": Range(low=0, high=1, open_low=True),
    "model.init_std": _POSITIVE,
    "mesh.data": _AXIS,
    "mesh.fsdp": _AXIS,
    "mesh.context": _AXIS,
    "mesh.tensor": _AXIS,
    "mesh.expert": _AXIS,
    "mesh.simulate": Range(low=0, high=4096),
    "attention.block_size": _COUNT,
    "adapter.rank": _COUNT,
    "adapter.alpha": _POSITIVE,
    "init.stack_bytes": _COUNT,
    "train.logits_bytes": _COUNT,
    "data.seq_len": _COUNT,
    "data.batch": _COUNT,
    "data.seed": _SEED,
    "data.epochs": _COUNT,
    "data.eval_fraction": Range(low=0, high=1),
    "data.eval_rows": _COUNT,
    "data.prefetch": Range(low=0, high=1024),
    "train.steps": _COUNT,
    "train.grad_accum": _COUNT,
    "train.eval_every": _ANY,
    "train.log_every": _COUNT,
    "optimizer.lr": _ANY,
    "optimizer.weight_decay": _ANY,
    "optimizer.clip_norm": _POSITIVE,
    "optimizer.b1": _DECAY,
    "optimizer.b2": _DECAY,
    "optimizer.eps": _POSITIVE,
    "schedule.warmup_steps": _ANY,
    "schedule.total_steps": _COUNT,
    "schedule.decay_steps": _COUNT,
    "schedule.final_fraction": Range(low=0, high=1),
    "checkpoint.every": _COUNT,
    "checkpoint.keep": _COUNT,
    "log.norms_every": _ANY,
    "log.histograms_every": _ANY,
    "profile.start": _COUNT,
    "profile.steps": _COUNT,
    "generate.batch": _COUNT,
    "generate.tokens": _COUNT,
    "generate.temperature": _ANY,
    "generate.seed": _SEED,
}


def range_problems(config: Config) -> Iterator[tuple[str, str]]:
    """The keys whose values are out of range, each with its problem. None is in every range."""
    for key in leaves():
        value = read(config, key)
        if key in RANGES and value is not None and not RANGES[key].holds(value):
            way_out = "; null does without" if leaves()[key].optional else ""
            yield key, f"{key}={value}: must be {RANGES[key]}{way_out}"
