"""The device mesh: its five named axes, and the devices that stand behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AxisType, Mesh

from configs.mesh_axes import resolve_axes

# Outermost first: tensor neighbours are nearest.
AXES = ("data", "fsdp", "expert", "context", "tensor")

__all__ = ["AXES", "make_mesh", "resolve_axes", "simulate_cpu_devices"]


def make_mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Lays all `devices` (default: all that JAX sees) out over the named axes.

    `sizes` maps axis names to sizes, in the order of the mesh; axes of AXES that it leaves out get
    size 1, and one size may be -1. JAX chooses the order of the devices, so that on a TPU torus
    neighbours in the mesh are neighbours on the wires.

    Raises ValueError when the sizes do not use every device exactly once.
    """
    devices = jax.devices() if devices is None else devices
    ordered = {name: sizes.get(name, 1) for name in (*AXES, *sizes)}
    resolved = resolve_axes(ordered, len(devices))
    mesh = jax.make_mesh(
        tuple(resolved.values()),
        tuple(resolved),
        axis_types=(AxisType.Auto,) * len(resolved),
        devices=devices,
    )
    assert math.prod(mesh.devices.shape) == len(devices)
    return mesh


def simulate_cpu_devices(num_devices: int) -> None:
    """Makes this process see `num_devices` CPU devices in place of the real hardware.

    Raises ValueError for a count below 1, RuntimeError when JAX has already started its devices
    and their number is another one.
    """
    if num_devices < 1:
        raise ValueError(f"cannot simulate {num_devices} devices; the count must be positive")
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
        jax.config.update("jax_platforms", "cpu")
    except RuntimeError as error:
        if jax.default_backend() == "cpu" and jax.device_count() == num_devices:
            return
        raise RuntimeError(
            f"cannot simulate {num_devices} devices: JAX already runs on {jax.device_count()} "
            f"{jax.default_backend()} device(s); call simulate_cpu_devices before anything that "
            "touches a device"
        ) from error
