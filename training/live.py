"""The live view of a training run on a terminal, drawn with Rich; lines of the log go above it.

step 120/400 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ eta 0:01:23
loss 2.4012 ▇▆▅▅▄▃▃▂▂▁▁▁▁
tokens/s 12,346 · step 0.083 s · data wait 1% · MFU 41.2% · memory 11.4 GiB · checkpoint in 30
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.,-~=^#"
_RECENT = 2000  # losses in the line


class LiveView:
    """What is known of a run's last step; start it, update it, stop it.

    `checkpoint_every` is in steps. Values that a step does not have are left out.
    """

    def __init__(self, total_steps: int, start_step: int, checkpoint_every: int | None) -> None:
        self._total = total_steps
        self._checkpoint_every = checkpoint_every
        self._step = start_step
        self._eta = "-:--:--"
        self._values: Mapping[str, Any] = {}
        self._losses: deque[float] = deque(maxlen=_RECENT)
        self._live = Live(self, refresh_per_second=4)

    def start(self) -> None:
        """Takes the last lines of the terminal."""
        self._live.start()

    def stop(self) -> None:
        """Leaves the view as it is last."""
        self._live.stop()

    def update(self, step: int, values: Mapping[str, Any], eta: str) -> None:
        """Shows a finished step; `values` as given to MetricsLog.write."""
        self._step, self._values, self._eta = step, values, eta
        if values.get("loss") is not None:
            self._losses.append(float(values["loss"]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blocks = _ASCII_BLOCKS if options.ascii_only else _BLOCKS
        separator = " | " if options.ascii_only else " · "
        yield Group(
            self._progress(),
            self._loss(blocks, max(10, options.max_width - 16)),
            Text(separator.join(self._facts()), overflow="ellipsis", no_wrap=True),
        )

    def _progress(self) -> Table:
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        bar = ProgressBar(total=self._total, completed=self._step)
        row.add_row(f"step {self._step}/{self._total}", bar, f"eta {self._eta}")
        return row

    def _loss(self, blocks: str, width: int) -> Text:
        if not self._losses:
            return Text("loss")
        return Text.assemble(
            f"loss {self._losses[-1]:.4f} ", (sparkline(tuple(self._losses), width, blocks), "cyan")
        )

    def _facts(self) -> Iterator[str]:
        values = {name: float(v) for name, v in self._values.items() if v is not None}
        seconds = values.get("step_time_seconds")
        if "tokens_per_second" in values:
            yield f"tokens/s {values['tokens_per_second']:,.0f}"
        if seconds is not None:
            yield f"step {seconds:.3f} s"
        if seconds and "data_wait_seconds" in values:
            yield f"data wait {values['data_wait_seconds'] / seconds:.0%}"
        if "mfu" in values:
            yield f"MFU {values['mfu']:.1%}"
        if "bytes_in_use" in values:
            yield f"memory {values['bytes_in_use'] / 2**30:.1f} GiB"
        if self._checkpoint_every:
            left = self._checkpoint_every - self._step % self._checkpoint_every
            yield f"checkpoint in {min(left, self._total - self._step)}"


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """Means of `values` over at most `width` stretches, the least low and the greatest high.

    sparkline([3, 2, 1], 10) -> '█▅▁'; what is not finite is '?'.
    """
    num = min(width, len(values))
    bounds = [len(values) * i // num for i in range(num + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(blocks) - 1) / (high - low or 1.0)
    return "".join(
        blocks[round((mean - low) * scale)] if math.isfinite(mean) else "?" for mean in means
    )
