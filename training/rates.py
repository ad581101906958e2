"""Speed of a step in the units that people compare: tokens and FLOPs a second, MFU."""

from __future__ import annotations

from dataclasses import dataclass

from training.flops import peak_flops, step_flops
from training.setup import Setup


@dataclass(frozen=True)
class Rates:
    """What turns a step's tokens and seconds into rates."""

    num_devices: int
    flops: int
    peak: float | None

    @classmethod
    def of(cls, setup: Setup) -> Rates:
        """The rates' constants for a run: its devices, the step's model FLOPs, the peak."""
        data = setup.config.data
        flops = step_flops(
            setup.specs.parameters, setup.config.model, data.batch, data.seq_len, causal=True
        )
        kind = setup.mesh.devices.flat[0].device_kind
        return cls(setup.mesh.size, flops, peak_flops(kind))

    def values(self, tokens: float, seconds: float) -> dict[str, float]:
        """Metrics of one step that scored `tokens` in `seconds`."""
        flops = self.flops / seconds / self.num_devices
        values = {
            "step_tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "per_device_tokens_per_second": tokens / seconds / self.num_devices,
            "per_device_tflops_per_second": flops / 1e12,
        }
        return {**values, "mfu": flops / self.peak} if self.peak else values
