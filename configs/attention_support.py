"""What attention can do, by kernel, strategy, layout and feature: the one place that decides.

On plain values and without JAX, so that a config is refused before anything starts;
`parallelism.attention` asks the same for every attention that it traces. The keys of the config
stand in the reasons, with their values and the nearest way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from configs.rule import divisors, multiples

KERNELS: Final = ("xla", "splash", "cudnn")
STRATEGIES: Final = ("all_gather", "ring", "ulysses")
PLATFORM_OF: Final = {"splash": "tpu", "cudnn": "gpu"}
"""Where a kernel runs; xla does everywhere."""

LANES: Final = 128
"""Splash takes blocks of a multiple of so many tokens."""
CUDNN_WIDTH: Final = 256
"""The widest head that cuDNN takes."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One attention: where it is computed and what it has to do. None is not known yet.

    `kernel` auto stands for xla, which does all that the others do; `window`, `top_k` and
    `soft_cap` None are absent.
    """

    kernel: str = "auto"
    strategy: str = "all_gather"
    layout: str = "zigzag"
    cp: int | None = None
    tensor: int | None = None
    platform: str | None = None
    causal: bool = True
    window: int | None = None
    top_k: int | None = None
    segments: bool = False
    positions: bool = False
    sinks: bool = False
    soft_cap: float | None = None
    seq_len: int | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None


def reasons_against(asked: Asked) -> Iterator[str]:
    """Every reason why it cannot be computed."""
    if asked.strategy == "ulysses":
        yield from _shared_heads(asked)
    if asked.top_k is not None:
        yield from _chosen_keys(asked)
    if asked.kernel == "splash":
        yield from _splash(asked)
    if asked.kernel == "cudnn":
        yield from _cudnn(asked)
    home = PLATFORM_OF.get(asked.kernel)
    if home is not None and asked.platform not in (None, home):
        yield (
            f"attention.kernel={asked.kernel} runs on {home}, the devices here are "
            f"{asked.platform}: {_OTHERS}"
        )


_OTHERS: Final = "attention.kernel=auto or xla would fit"


def _shared_heads(asked: Asked) -> Iterator[str]:
    cp, tensor, heads = asked.cp, asked.tensor, asked.num_heads
    if cp is None or cp == 1 or tensor is None or heads is None:
        return
    shared = tensor if heads % tensor == 0 else 1  # heads that do not divide stay whole
    if heads % (cp * shared) == 0:
        return
    yield (
        f"context_parallel.strategy=ulysses shares model.num_heads({heads}) among mesh.context="
        f"{cp} * mesh.tensor({shared}) = {cp * shared} ranks, which does not divide them; "
        f"mesh.context={divisors(heads // shared)} would fit, or context_parallel.strategy="
        "all_gather or ring, which take any number"
    )


def _chosen_keys(asked: Asked) -> Iterator[str]:
    name = f"sparse attention (model.indexer.top_k={asked.top_k})"
    if asked.strategy == "ulysses" and asked.cp != 1:
        yield (
            f"{name} has index heads that all heads share, and context_parallel.strategy=ulysses "
            "would send them to every rank: all_gather or ring would fit"
        )
    if asked.kernel in PLATFORM_OF:
        yield f"attention.kernel={asked.kernel} does no {name}: {_OTHERS}"


def _splash(asked: Asked) -> Iterator[str]:
    name = "attention.kernel=splash"
    if asked.strategy == "ring":
        yield (
            f"{name} needs all keys at once, not context_parallel.strategy=ring: all_gather or "
            f"ulysses would fit, or {_OTHERS}"
        )
    if asked.positions:
        yield f"{name} takes no explicit positions: {_OTHERS}"
    if asked.seq_len is not None and asked.cp is not None and asked.seq_len % (LANES * asked.cp):
        yield (
            f"{name} needs a multiple of {LANES} tokens a rank, not data.seq_len({asked.seq_len}) "
            f"/ mesh.context({asked.cp}) = {asked.seq_len // asked.cp}: "
            f"data.seq_len={multiples(asked.seq_len, LANES * asked.cp)} would fit, or {_OTHERS}"
        )


def _cudnn(asked: Asked) -> Iterator[str]:
    name = "attention.kernel=cudnn"
    features = {
        "explicit positions": asked.positions,
        "segments of packed rows (data.pack=true)": asked.segments,
        f"sliding windows (model.window={asked.window})": asked.window is not None,
        f"soft caps (model.attention_soft_cap={asked.soft_cap})": asked.soft_cap is not None,
    }
    for feature, wanted in features.items():
        if wanted:
            yield f"{name} does no {feature} between folded chunks: {_OTHERS}"
    if asked.layout == "striped" and asked.cp not in (None, 1) and asked.causal:
        yield (
            f"{name} has no mask for two stripes: context_parallel.layout=zigzag or contiguous "
            f"would fit, or {_OTHERS}"
        )
    if asked.dtype == "float32":
        yield (
            f"{name} does not compute in float32: model.compute_dtype=bfloat16 would fit, or "
            f"{_OTHERS}"
        )
    width = asked.head_dim
    if width is not None and (width % 8 or width > CUDNN_WIDTH):
        nearest = multiples(width, 8) if width < CUDNN_WIDTH else str(CUDNN_WIDTH)
        yield (
            f"{name} takes heads of a multiple of 8 up to {CUDNN_WIDTH}, not model.head_dim="
            f"{width}: {nearest} would fit, or {_OTHERS}"
        )
