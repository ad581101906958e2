"""What attention can do, as configs.attention_support decides it, and which kernel computes it.

`python -m parallelism.attention.support` prints the table of docs/context_parallelism.md.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

from configs.attention_support import KERNELS, STRATEGIES, Asked, reasons_against
from parallelism.attention.blocks import AttentionMask
from parallelism.attention.setup import AttentionSetup
from parallelism.layout import LAYOUTS, Layout


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one attention is asked to do; None is a size that is not known yet."""

    mask: AttentionMask = field(default_factory=AttentionMask)
    segments: bool = False
    positions: bool = False
    sinks: bool = False
    soft_cap: float | None = None
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
    asked = _asked(setup, request, kernel or setup.kernel, None)
    return next(reasons_against(asked), None)


def choose_kernel(setup: AttentionSetup, request: Request) -> str:
    """The kernel that computes; `auto` takes splash on TPU where it can, and xla elsewhere.

    cuDNN has not been run on a GPU yet, so it has to be asked for by name. Raises UnsupportedError
    for what is not supported, and for a kernel of another platform.
    """
    kernel = setup.kernel
    if kernel == "auto":
        on_tpu = setup.platform == "tpu" and unsupported(setup, request, "splash") is None
        kernel = "splash" if on_tpu else "xla"
    for reason in reasons_against(_asked(setup, request, kernel, setup.platform)):
        raise UnsupportedError(reason)
    return kernel


def _asked(setup: AttentionSetup, request: Request, kernel: str, platform: str | None) -> Asked:
    return Asked(
        kernel=kernel,
        strategy=setup.strategy,
        layout=setup.layout.name,
        cp=setup.layout.cp,
        tensor=setup.axis_size(setup.heads_axis),
        platform=platform,
        causal=request.mask.causal,
        window=request.mask.window,
        top_k=request.mask.top_k,
        segments=request.segments,
        positions=request.positions,
        sinks=request.sinks,
        soft_cap=request.soft_cap,
        seq_len=request.seq_len,
        num_heads=request.num_heads if setup.exchanges_heads else None,
        head_dim=request.head_dim,
        dtype=request.dtype,
    )


COLUMNS: Final = {
    "causal": Request(),
    "full": Request(mask=AttentionMask(causal=False)),
    "window": Request(mask=AttentionMask(window=1)),
    "packed": Request(segments=True),
    "soft cap": Request(soft_cap=1.0),
    "sinks": Request(sinks=True),
    "positions": Request(positions=True),
    "top k": Request(mask=AttentionMask(top_k=1)),
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
