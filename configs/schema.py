"""Every key a user can set: its type, its default and what it means; the model's are beside it.

The YAML groups under configs/ give values to these fields and nothing else. Units stand in the
names. `configs.load` turns overrides into a `Config`; `configs/validate.py` holds the rules
that tie several keys together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from configs.keys import key, key_fields
from configs.model_schema import ModelConfig


class Asked(NamedTuple):
    """What a command itself says of the model; a folder of init.from_hf says the rest.

    `keys` are the keys of the model that it sets; `is_whole` says that it names a model, or goes
    on with a run that has one; `names_run` that run.name is its own or that run's.
    """

    keys: frozenset[str] = frozenset()
    is_whole: bool = False
    names_run: bool = False


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    name: str = key("Name of the run; the directory is runs/<name>/<unique> unless run.dir is set.")
    dir: str = key("Run directory. An existing one is resumed when checkpoint.resume=auto.")


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    data: int = key("Data-parallel replicas. One of the axes may be -1: it takes what is left.")
    fsdp: int = key("Ways that parameters and the batch are sharded.")
    context: int = key("Context-parallel degree: ways that the sequence is sharded.")
    tensor: int = key("Tensor-parallel degree: ways that heads and the MLP width are sharded.")
    expert: int = key(
        "Expert-parallel degree: ways that experts are sharded. Elsewhere it acts as fsdp does."
    )
    simulate: int = key("Simulate this many CPU devices in this process; 0 uses the real devices.")
    topology: str | None = key(
        "mode=plan and mode=compile: TPU devices that need not be here, such as v5p:4x4x8.", None
    )


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
    from_hf: str | None = key(
        "Hugging Face folder (config.json and safetensors) to start from; the model is taken from "
        "its config.json unless model= says otherwise. Without run.dir, eval, generate and export "
        "read it too."
    )
    stack_bytes: int = key(
        "Parameters of at most this many bytes per device are drawn by programs that they share, "
        "in memory of that size; larger ones by a program for each kind."
    )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    source: Literal[
        "stdlib",
        "synthetic",
        "text",
        "jsonl",
        "parquet",
        "arrayrecord",
        "tokens",
        "huggingface",
        "chat",
    ] = key("Where documents come from; docs/data.md has a table.")
    path: str | None = key(
        "A file, a folder (every file below it that the source reads, sorted) or a pattern, such "
        "as x/*.jsonl; huggingface: a folder that save_to_disk wrote."
    )
    seq_len: int = key("Tokens in a row.")
    batch: int = key("Rows in the global batch of one optimizer step.")
    pack: bool = key(
        "true: documents are packed into rows, each attends to itself only; false: documents are "
        "joined, EOS between them, and cut into rows."
    )
    seed: int = key("Seed of the order of the data.")
    epochs: int | None = key("Passes over the data; null repeats for ever.")
    eval_fraction: float = key(
        "Part of the documents held out for evaluation; 1, all of them, is for mode=eval."
    )
    eval_rows: int | None = key("Rows of the eval split that are scored; null scores all.")
    prefetch: int = key("Batches prepared ahead by background threads.")
    text_field: str | None = key(
        "Field that holds the text of a record (jsonl, parquet, huggingface, arrayrecord); null: "
        "an arrayrecord is text itself.",
        "text",
    )
    tokenizer: str | None = key(
        "A tokenizer.json, a folder with one, or a SentencePiece .model; null: that of "
        "init.from_hf if it has one, else bytes are tokens.",
        None,
    )
    eos_token: str | None = key(
        "Token that ends a document; null: the one that the tokenizer names. Without a tokenizer, "
        "tokens takes a number; null: the last of the vocabulary.",
        None,
    )
    token_cache: str | None = key(
        "Folder that keeps the tokens of texts for later runs; null tokenizes in every run.", None
    )
    bin_dtype: Literal["uint16", "uint32"] = key("tokens: what .bin files hold.", "uint16")
    hub_name: str | None = key("huggingface: OWNER/NAME of a data set of the hub.", None)
    hf_config: str | None = key("huggingface: the configuration of a data set of the hub.", None)
    hf_split: str = key("huggingface: the split of the data set that is read.", "train")
    chat_template: str | None = key(
        "chat: a Jinja file; null: the tokenizer's own, or, if it has none, plain turns.", None
    )
    chat_date: str = key("chat: the date, for templates that write today's.", "2024-07-26")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = key("Optimizer steps of the run.")
    grad_accum: int = key("Microbatches that one optimizer step is split into.")
    logits_bytes: int = key(
        "Logits, float32, of at most this many bytes per device are made at once; larger ones by "
        "pieces of the vocabulary, and a second time in the backward pass."
    )
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
    warmup_steps: int = key(
        "Steps of linear warm-up, of which step t uses lr * t / warmup_steps; "
        "a tenth of the schedule, 20 at most, unless set."
    )
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
class LogConfig:
    """Measurements beyond those of every step; docs/tensorboard.md shows them."""

    norms_every: int = key("Steps between norms of each layer's gradient and parameters; 0: none.")
    histograms_every: int = key(
        "Steps between histograms of each layer's gradient and parameters; 0: none."
    )
    wandb: bool = key("Copy all scalars to Weights & Biases as well.")
    mlflow: bool = key("Copy all scalars to MLflow as well.")
    project: str = key("Weights & Biases project or MLflow experiment of the copies.")


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """A trace for TensorBoard's profile plugin."""

    start: int | None = key("First step that is traced; null traces none.")
    steps: int = key("Steps that are traced.")


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    prompt: str = key("Text to continue.")
    prompts: str | None = key(
        "File with a prompt a line, in place of generate.prompt; prints a JSON object a line."
    )
    batch: int = key("How many prompts of the file are continued at once.")
    tokens: int = key("How many tokens to add.")
    temperature: float = key(
        "0 takes the likeliest token; 1 samples from the model's distribution."
    )
    seed: int = key("Seed of the sampling.")


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Fine-tuning of small factors beside frozen matrices."""

    name: Literal["none", "lora"] = key("none trains every parameter, lora low-rank factors only.")
    rank: int = key("Rank of the factors.")
    alpha: float = key("The factors' product is multiplied by alpha / rank.")
    targets: str = key(
        "What has factors: all projections, or names of query, key, value, out, gate, up, down, in "
        "latent attention query_down, query_up, kv_down, kv_up; and experts: all,experts."
    )


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    path: str | None = key("mode=export: the folder to write.")
    form: Literal["merged", "peft"] = key(
        "merged: a whole model for transformers; peft: the factors of adapter=lora alone."
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    mode: Literal["train", "eval", "generate", "plan", "compile", "export"] = key("What to do.")
    seed: int = key("Seed of the parameters.")
    compile_cache: str | None = key(
        "Directory of compiled programs, shared by runs; null: none. Not used where context ranks "
        "are simulated: there programs that are read back can lock up."
    )
    run: RunConfig = key("The run and its directory.")
    model: ModelConfig = key("The transformer.")
    mesh: MeshConfig = key("Device mesh.")
    context_parallel: ContextParallelConfig = key("Context parallelism.")
    attention: AttentionConfig = key("Attention kernels.")
    adapter: AdapterConfig = key("Adapter.")
    init: InitConfig = key("Initialisation.")
    data: DataConfig = key("Data.")
    train: TrainConfig = key("Training loop.")
    optimizer: OptimizerConfig = key("Optimizer.")
    schedule: ScheduleConfig = key("Learning-rate schedule.")
    checkpoint: CheckpointConfig = key("Checkpoints.")
    log: LogConfig = key("Further measurements in TensorBoard.")
    profile: ProfileConfig = key("Profiles.")
    generate: GenerateConfig = key("Generation.")
    export: ExportConfig = key("Export.")
    asked: Asked = field(default=Asked(), compare=False, repr=False)


def key_values(config: Config) -> dict[str, Any]:
    """The value of every key, as a nested mapping."""
    values = asdict(config)
    return {one.name: values[one.name] for one in key_fields(config)}
