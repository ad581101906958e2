"""Every key a user can set: its type, its default and what it means.

The YAML groups under configs/ give values to these fields and nothing else. Units stand in the
names. `configs.load` turns overrides into a `Config`; `configs/validate.py` holds the rules
that tie several keys together.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any, Literal


def key(doc: str, default: Any = MISSING) -> Any:
    """Declares one config field with its one-line documentation."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    name: str = key("Name of the run; the directory is runs/<name>/<unique> unless run.dir is set.")
    dir: str = key("Run directory. An existing one is resumed when checkpoint.resume=auto.")


@dataclass(frozen=True, kw_only=True)
class RopeScalingConfig:
    """Frequency scaling of rotary embeddings for contexts longer than the pretraining length."""

    type: Literal["none", "linear", "llama3"] = key("none, linear or llama3 (by frequency band).")
    factor: float = key("How many times longer the context may be than the original.", 1.0)
    original_seq_len: int = key("Sequence length of the pretraining, in tokens.", 8192)
    low_freq_factor: float = key("llama3: wavelengths above original/low are scaled fully.", 1.0)
    high_freq_factor: float = key("llama3: wavelengths below original/high are kept.", 4.0)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    name: str = key("Which model this is; for logs and tables.")
    vocab_size: int = key("Rows of the embedding table.")
    num_layers: int = key("Decoder layers.")
    embed_dim: int = key("Width D of the residual stream.")
    mlp_dim: int = key("Width F of the feed-forward layer.")
    num_heads: int = key("Query heads N.")
    num_kv_heads: int = key("Key/value heads K; divides num_heads (GQA), 1 is MQA.")
    head_dim: int = key("Width H of one head; need not be embed_dim / num_heads.")
    rope_theta: float = key("Base of the rotary frequencies.")
    rope_scaling: RopeScalingConfig = key("Scaling of the rotary frequencies.")
    norm_eps: float = key("Epsilon inside RMSNorm.")
    tie_embeddings: bool = key("Use the embedding table as the output head as well.")
    init_std: float = key("Standard deviation of the truncated normal that draws matrices.")
    scan_layers: bool = key("Scan over layers (compile time flat in depth) or unroll; same values.")
    remat: str = key(
        "What the backward pass recomputes: none (keeps all), full (keeps layer inputs), dots "
        "(keeps matrix products), or comma-separated names of what is kept: query, key, value, "
        "attention_out, mlp_gate, mlp_up, mlp_out."
    )
    param_dtype: Literal["float32", "bfloat16"] = key("Dtype in which parameters are stored.")
    compute_dtype: Literal["auto", "float32", "bfloat16"] = key(
        "Dtype of activations and matrix products; auto is bfloat16 on accelerators, float32 on CPU."
    )


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    data: int = key("Data-parallel replicas. One of the axes may be -1: it takes what is left.")
    fsdp: int = key("Ways that parameters and the batch are sharded.")
    context: int = key("Context-parallel degree: ways that the sequence is sharded.")
    tensor: int = key("Tensor-parallel degree: ways that heads and the MLP width are sharded.")
    simulate: int = key("Simulate this many CPU devices in this process; 0 uses the real devices.")


@dataclass(frozen=True, kw_only=True)
class ContextParallelConfig:
    strategy: Literal["all_gather", "ring", "ulysses"] = key("How ranks see each other's keys.")
    layout: Literal["zigzag", "striped", "contiguous"] = key("Which tokens a context rank holds.")
    reorder: Literal["batch", "attention"] = key(
        "batch: the batch is folded once; attention: folded around each attention alone."
    )


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    kernel: Literal["auto", "xla", "cudnn", "splash"] = key("Which attention kernel computes.")
    block_size: int = key("Tokens a side of the blocks in which attention is planned and computed.")


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    strategy: Literal["two_stage", "single_graph"] = key("How parameters are drawn; same bits.")
    stack_bytes: int = key("Largest stack of draws alive at once, in bytes per device.")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    source: Literal["stdlib", "synthetic", "text"] = key("Where documents come from.")
    path: str | None = key("text: a file or a folder (every file below it, sorted).")
    seq_len: int = key("Tokens in a row.")
    batch: int = key("Rows in the global batch of one optimizer step.")
    pack: bool = key(
        "true: documents are packed into rows, each attends to itself only; false: documents are "
        "joined, EOS between them, and cut into rows."
    )
    seed: int = key("Seed of the order of the data.")
    epochs: int | None = key("Passes over the data; null repeats for ever.")
    eval_fraction: float = key("Part of the documents held out for evaluation, in [0, 1).")
    eval_rows: int | None = key("Rows of the eval split that are scored; null scores all.")
    prefetch: int = key("Batches prepared ahead by background threads.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = key("Optimizer steps of the run.")
    grad_accum: int = key("Microbatches that one optimizer step is split into.")
    eval_every: int = key("Steps between evaluations; 0 evaluates at the end only.")
    log_every: int = key("Steps between log lines.")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: Literal["adamw", "lion", "adafactor", "muon", "sgd"] = key("Update rule.")
    lr: float = key("Peak learning rate.")
    weight_decay: float = key("Decoupled weight decay, on matrices only.")
    clip_norm: float | None = key("Global gradient norm above which gradients are scaled down.")
    b1: float = key("Decay of the first moment (adamw, lion), or momentum (sgd, muon).")
    b2: float = key("Decay of the second moment (adamw, lion).")
    eps: float = key("Added to the denominator (adamw, muon).")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    name: Literal["cosine", "wsd", "linear", "constant"] = key("Shape after the warm-up.")
    warmup_steps: int = key("Steps of linear warm-up; step t of them uses lr * t / warmup_steps.")
    total_steps: int | None = key("Length of the schedule; null takes train.steps.")
    decay_steps: int | None = key("wsd: steps of the final decay; null takes a tenth of the total.")
    final_fraction: float = key("Learning rate at the end, as a fraction of the peak.")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: int = key("Steps between checkpoints; the last step is always saved.")
    keep: int = key("How many of the newest checkpoints are kept.")
    resume: Literal["auto", "never", "required"] = key(
        "auto: go on from the newest readable checkpoint if there is one."
    )


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    prompt: str = key("Text to continue.")
    tokens: int = key("How many tokens to add.")
    temperature: float = key("0 takes the likeliest token; 1 samples from the model's distribution.")
    seed: int = key("Seed of the sampling.")


@dataclass(frozen=True, kw_only=True)
class Config:
    mode: Literal["train", "eval", "generate", "plan"] = key("What to do.")
    seed: int = key("Seed of the parameters.")
    compile_cache: str | None = key("Directory of compiled programs, shared by runs; null: none.")
    run: RunConfig = key("The run and its directory.")
    model: ModelConfig = key("The transformer.")
    mesh: MeshConfig = key("Device mesh.")
    context_parallel: ContextParallelConfig = key("Context parallelism.")
    attention: AttentionConfig = key("Attention kernels.")
    init: InitConfig = key("Initialisation.")
    data: DataConfig = key("Data.")
    train: TrainConfig = key("Training loop.")
    optimizer: OptimizerConfig = key("Optimizer.")
    schedule: ScheduleConfig = key("Learning-rate schedule.")
    checkpoint: CheckpointConfig = key("Checkpoints.")
    generate: GenerateConfig = key("Generation.")
