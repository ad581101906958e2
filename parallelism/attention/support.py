"""What attention can do, by kernel, strategy, layout and feature: the one place that decides.

`python -m parallelism.attention.support` prints the table of docs/context_parallelism.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from parallelism.attention.blocks import AttentionMask
from parallelism.attention.setup import KERNELS, STRATEGIES, AttentionSetup
from parallelism.layout import LAYOUTS, Layout

LANES: Final = 128
"""Splash takes blocks of a multiple of so many tokens."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one attention is asked to do; None is a size that is not known yet."""

    mask: AttentionMask = field(default_factory=AttentionMask)
    segments: bool = False
    positions: bool = False
    sinks: bool = False
    soft_cap: bool = False
    seq_len: int | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None


class UnsupportedError(ValueError):
    """A combination of strategy, kernel, layout and features that attention cannot compute."""


def unsupported(setup: AttentionSetup, request: Request, kernel: str | None = None) -> str | None:
    """Why a setup cannot do what is asked, with the values and a way out; None if it can.

    `kernel` stands in for that of the setup. Devices do not matter here.
    """
    return next(_reasons(setup, request, kernel or setup.kernel), None)


def choose_kernel(setup: AttentionSetup, request: Request) -> str:
    """The kernel that computes; `auto` takes splash on TPU where it can, and xla elsewhere.

    cuDNN has not been run on a GPU yet, so it has to be asked for by name. Raises UnsupportedError
    for what is not supported, and for a kernel of another platform.
    """
    kernel = setup.kernel
    if kernel == "auto":
        on_tpu = setup.platform == "tpu" and unsupported(setup, request, "splash") is None
        kernel = "splash" if on_tpu else "xla"
    reason = unsupported(setup, request, kernel)
    home = {"splash": "tpu", "cudnn": "gpu"}.get(kernel, setup.platform)
    if reason is None and home != setup.platform:
        reason = f"attention.kernel={kernel} runs on {home}, the devices here are {setup.platform}"
    if reason is not None:
        raise UnsupportedError(reason)
    return kernel


def _reasons(setup: AttentionSetup, request: Request, kernel: str) -> Iterator[str]:
    if setup.exchanges_heads and request.num_heads is not None:
        ways = setup.axis_size(setup.context_axis) * setup.axis_size(setup.heads_axis)
        alone = setup.axis_size(setup.context_axis)
        divides = request.num_heads % setup.axis_size(setup.heads_axis) == 0
        if request.num_heads % (ways if divides else alone) != 0:
            yield (
                f"context_parallel.strategy=ulysses shares {request.num_heads} query heads among "
                f"{setup.context_axis} * {setup.heads_axis} = {ways} ranks, which does not divide "
                "them; all_gather and ring take any number"
            )
    if kernel == "splash":
        yield from _splash_reasons(setup, request)
    if kernel == "cudnn":
        yield from _cudnn_reasons(setup, request)


def _splash_reasons(setup: AttentionSetup, request: Request) -> Iterator[str]:
    name, way_out = "attention.kernel=splash", "use attention.kernel=xla"
    if setup.strategy == "ring":
        yield f"{name} needs all keys at once: use all_gather or ulysses, not ring, or {way_out}"
    if request.positions:
        yield f"{name} takes no explicit positions: {way_out}"
    shard = None if request.seq_len is None else request.seq_len // setup.layout.cp
    if shard is not None and shard % LANES != 0:
        yield (
            f"{name} needs a multiple of {LANES} tokens a rank; seq_len {request.seq_len} / cp "
            f"{setup.layout.cp} = {shard}: {way_out}"
        )


def _cudnn_reasons(setup: AttentionSetup, request: Request) -> Iterator[str]:
    name, way_out = "attention.kernel=cudnn", "use attention.kernel=xla"
    asked = {
        "explicit positions": request.positions,
        "segments (packed rows)": request.segments,
        "sliding windows": request.mask.window is not None,
        "soft caps": request.soft_cap,
    }
    for feature, wanted in asked.items():
        if wanted:
            yield f"{name} does {feature} in no combination with folded chunks: {way_out}"
    if setup.layout.name == "striped" and setup.layout.cp > 1 and request.mask.causal:
        yield f"{name} has no mask for two stripes: use layout zigzag or contiguous, or {way_out}"
    if request.dtype == "float32":
        yield f"{name} computes in bfloat16 or float16, not in float32: {way_out}"
    if request.head_dim is not None and (request.head_dim % 8 or request.head_dim > 256):
        yield f"{name} takes heads of a multiple of 8 up to 256, not {request.head_dim}: {way_out}"


COLUMNS: Final = {
    "causal": Request(),
    "full": Request(mask=AttentionMask(causal=False)),
    "window": Request(mask=AttentionMask(window=1)),
    "packed": Request(segments=True),
    "soft cap": Request(soft_cap=True),
    "sinks": Request(sinks=True),
    "positions": Request(positions=True),
}


def support_table() -> str:
    """A Markdown table of what works, row by row of kernel, strategy and layout."""
    lines = [
        "| kernel | strategy | layout | " + " | ".join(COLUMNS) + " |",
        "| --- " * (3 + len(COLUMNS)) + "|",
    ]
    for kernel, strategy in itertools.product(KERNELS, STRATEGIES):
        by_layout = {name: _cells(kernel, strategy, name) for name in LAYOUTS}
        for cells in dict.fromkeys(by_layout.values()):
            names = ", ".join(name for name, row in by_layout.items() if row == cells)
            lines.append(f"| {kernel} | {strategy} | {names} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(kernel: str, strategy: str, layout: str) -> tuple[str, ...]:
    setup = AttentionSetup(layout=Layout(layout, 2), strategy=strategy, kernel=kernel)
    return tuple("no" if unsupported(setup, r) else "yes" for r in COLUMNS.values())


if __name__ == "__main__":
    print(support_table())
