"""Speed of a step in the units that people compare: tokens and FLOPs a second, MFU, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from training.flops import peak_flops, step_flops
from training.setup import Setup


@dataclass(frozen=True)
class Rates:
    """What turns a step's tokens and seconds into rates."""

    num_devices: int
    flops: int
    full_square_flops: int
    peak: float | None

    @classmethod
    def of(cls, setup: Setup) -> Rates:
        """The rates' constants for a run: its devices, the step's model FLOPs, the peak."""
        data = setup.config.data
        parameters, model = setup.specs.parameters, setup.config.model
        causal, full = (
            step_flops(parameters, model, data.batch, data.seq_len, causal)
            for causal in (True, False)
        )
        kind = setup.mesh.devices.flat[0].device_kind
        return cls(setup.mesh.size, causal, full, peak_flops(kind))

    def values(self, tokens: float, seconds: float) -> dict[str, float]:
        """Metrics of one step that scored `tokens` in `seconds`."""
        device_seconds = seconds * self.num_devices
        values = {
            "step_tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "per_device_tokens_per_second": tokens / device_seconds,
            "per_device_tflops_per_second": self.flops / device_seconds / 1e12,
        }
        if self.peak:
            values["mfu"] = self.flops / device_seconds / self.peak
            values["mfu_full_square"] = self.full_square_flops / device_seconds / self.peak
        return values


def memory_values(devices: Sequence[jax.Device]) -> dict[str, int]:
    """Bytes in use, and the most so far, of the fullest of these devices; {} where unknown."""
    reports = [device.memory_stats() or {} for device in devices]
    names = ("bytes_in_use", "peak_bytes_in_use")
    return {
        name: max(r[name] for r in reports) for name in names if all(name in r for r in reports)
    }
