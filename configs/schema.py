"""Every key a user can set: its type, its default and what it means.

The YAML groups under configs/ give values to these fields and nothing else. Units stand in the
names. `configs.load` turns overrides into a `Config`; `configs/validate.py` holds the rules
that tie several keys together.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

Family = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "olmo2",
    "olmo3",
    "smollm3",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
]


def key(doc: str, default: Any = MISSING) -> Any:
    """Declares one config field with its one-line documentation."""
    return field(default=default, metadata={"doc": doc})


def key_fields(section: Any) -> list[Field[Any]]:
    """The fields of a section that are keys or sections of keys: all but `Config.asked`."""
    return [one for one in fields(section) if "doc" in one.metadata]


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
class RopeScalingConfig:
    """Frequency scaling of rotary embeddings for contexts longer than the pretraining length."""

    type: Literal["none", "linear", "llama3", "yarn"] = key(
        "none, linear, llama3 (by frequency band) or yarn (arXiv 2309.00071)."
    )
    factor: float = key("How many times longer the context may be than the original.", 1.0)
    original_seq_len: int = key("Sequence length of the pretraining, in tokens.", 8192)
    low_freq_factor: float = key("llama3: wavelengths above original/low are scaled fully.", 1.0)
    high_freq_factor: float = key("llama3: wavelengths below original/high are kept.", 4.0)
    beta_fast: float = key("yarn: pairs with more turns than this are kept.", 32.0)
    beta_slow: float = key("yarn: pairs with fewer turns than this are scaled fully.", 1.0)
    truncate: bool = key("yarn: round the two borders between pairs to whole pairs.", True)
    attention_factor: float | None = key(
        "yarn: multiplies queries and keys; null takes 0.1 ln(factor) + 1, or what mscale says.",
        None,
    )
    mscale: float | None = key("yarn as DeepSeek has it: numerator of the factor.", None)
    mscale_all_dim: float | None = key(
        "yarn as DeepSeek has it: denominator of the factor; it scales the scores as well.", None
    )


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Latent attention: keys and values come from one narrow latent (arXiv 2405.04434)."""

    kv_rank: int | None = key("Width of the key/value latent; null is ordinary attention.", None)
    query_rank: int | None = key("Width of the query latent; null projects queries directly.", None)
    nope_dim: int = key("Width of the part of a query or key head without rotary positions.", 128)
    rope_dim: int = key("Width of the part with rotary positions, which all key heads share.", 64)
    value_dim: int = key("Width of a value head.", 128)


@dataclass(frozen=True, kw_only=True)
class IndexerConfig:
    """Sparse attention (arXiv 2512.02556): light heads choose the keys that a query attends to."""

    num_heads: int = key("Heads that score keys; 0 has no indexer: every key is attended to.", 0)
    head_dim: int = key("Width of such a head; its first latent.rope_dim are rotated.", 128)
    top_k: int = key("Keys that a query attends to.", 2048)


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Mixture of experts in place of the feed-forward layer; every token is served (dropless)."""

    num_experts: int = key("Routed experts E; 0 has dense layers only.", 0)
    experts_per_token: int = key("Experts that each token goes to.", 2)
    expert_dim: int = key("Width of one expert.", 0)
    shared_dim: int = key("Width of the experts that see every token, all together; 0: none.", 0)
    dense_layers: int = key("How many of the first layers keep a dense feed-forward layer.", 0)
    scoring: Literal["softmax", "sigmoid"] = key("How router logits become scores.", "softmax")
    normalize: bool = key("Divide a token's weights by their sum.", True)
    weight_scale: float = key("Multiplies the weights after that.", 1.0)
    num_groups: int = key("Groups of experts among which a token first chooses; 1: no groups.", 1)
    top_groups: int = key("Groups that a token keeps.", 1)
    group_score: Literal["max", "top2_sum"] = key("What stands for a group in that choice.", "max")
    router_bias: bool = key("Add a bias to the router's logits.", False)
    correction_bias: bool = key(
        "Add a bias to the scores when experts are chosen, not to the weights (DeepSeek-V3).", False
    )
    correction_rate: float = key(
        "How far a step moves the correction bias of an expert towards an even load.", 0.0
    )
    balance_loss: float = key(
        "Factor of the load-balance loss (E times the sum over experts of load times mean "
        "probability, arXiv 2101.03961) that is added to the training loss.",
        0.0,
    )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    name: str = key("Which model this is; for logs and tables.")
    family: Family = key(
        "Whose parameter names and config.json a Hugging Face folder has: that of export.", "llama"
    )
    vocab_size: int = key("Rows of the embedding table.")
    num_layers: int = key("Decoder layers.")
    embed_dim: int = key("Width D of the residual stream.")
    mlp_dim: int = key("Width F of the dense feed-forward layer.")
    num_heads: int = key("Query heads N.")
    num_kv_heads: int = key("Key/value heads K; divides num_heads (GQA), 1 is MQA.")
    head_dim: int = key("Width H of a query or key head; need not be embed_dim / num_heads.")
    layer_pattern: str = key(
        "Kinds of attention layers, repeated over the depth: global, local (sees model.window "
        "tokens), global_nope, local_nope (without rotary positions). local*5,global is five local "
        "layers, then a global one.",
        "global",
    )
    window: int | None = key("Tokens that a local layer sees, the token itself included.", None)
    rope_theta: float = key("Base of the rotary frequencies.")
    rope_local_theta: float | None = key(
        "Base of the rotary frequencies in local layers, unscaled; null treats all layers alike.",
        None,
    )
    rope_interleaved: bool = key("Rotate pairs of neighbours (2i, 2i+1), not of halves.", False)
    rope_scaling: RopeScalingConfig = key("Scaling of the rotary frequencies.")
    latent: LatentConfig = key("Multi-head latent attention.", LatentConfig())
    indexer: IndexerConfig = key(
        "Sparse attention, over latents; its indexer is not trained.", IndexerConfig()
    )
    attention_bias: Literal["none", "qkv", "all"] = key(
        "Projections of the attention that add a bias; all includes the output's.", "none"
    )
    qk_norm: Literal["none", "head", "all"] = key(
        "Normalise queries and keys before rotation: over each head, or over all heads at once.",
        "none",
    )
    sinks: bool = key("A learned score per head joins the softmax and has no value.", False)
    query_scale: float | None = key(
        "Scores are divided by the square root of this; null takes the head's width.", None
    )
    attention_soft_cap: float | None = key("Scores x become cap * tanh(x / cap).", None)
    logit_soft_cap: float | None = key("Logits x become cap * tanh(x / cap).", None)
    activation: Literal["silu", "gelu_tanh", "clamped_silu"] = key(
        "Gate of the feed-forward layer; clamped_silu is that of gpt-oss.", "silu"
    )
    activation_limit: float = key("clamped_silu: gate and up are cut off at this.", 7.0)
    mlp_bias: bool = key("Projections of the feed-forward layer and of experts add a bias.", False)
    moe: MoEConfig = key("Mixture of experts.", MoEConfig())
    norm_eps: float = key("Epsilon inside RMSNorm.")
    norm_plus_one: bool = key("RMSNorm multiplies by 1 + scale, and scale starts at 0.", False)
    norm_placement: Literal["pre", "post", "both"] = key(
        "Where a sublayer is normalised: its input, its output, or both.", "pre"
    )
    scale_embeddings: bool = key("Multiply embeddings by sqrt(embed_dim).", False)
    tie_embeddings: bool = key("Use the embedding table as the output head as well.")
    init_std: float = key("Standard deviation of the truncated normal that draws matrices.")
    scan_layers: bool = key("Scan over layers (compile time flat in depth) or unroll; same values.")
    remat: str = key(
        "What the backward pass recomputes: none (keeps all), dots (keeps matrix products and "
        "attention, which no one pays twice), full (keeps layer inputs), or comma-separated names "
        "of what is kept: query, key, value, attention_out, mlp_gate, mlp_up, mlp_out."
    )
    param_dtype: Literal["float32", "bfloat16"] = key("Dtype in which parameters are stored.")
    compute_dtype: Literal["auto", "float32", "bfloat16"] = key(
        "Dtype of activations and matrix products; auto: bfloat16 on accelerators, float32 on CPU."
    )


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
