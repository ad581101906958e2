"""TPU topologies by name: how many devices one has and how much memory each, without JAX."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from configs.schema import Config

_NAME = re.compile(r"(\w+?):(\d+(?:x\d+){1,2})")


@dataclass(frozen=True)
class Generation:
    """`devices_per_chip` as JAX counts them; `hbm_gib` is what the maker says of one device."""

    devices_per_chip: int
    hbm_gib: int


GENERATIONS = {
    "v2": Generation(2, 8),
    "v3": Generation(2, 16),
    "v4": Generation(2, 16),
    "v5e": Generation(1, 16),
    "v5p": Generation(1, 95),
    "v6e": Generation(1, 32),
}


@dataclass(frozen=True)
class Topology:
    """A generation of chips and how many of them."""

    generation: Generation
    num_chips: int

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.generation.devices_per_chip

    @property
    def hbm_bytes(self) -> int:
        """Memory of one device."""
        return self.generation.hbm_gib * 2**30


def parse_topology(name: str) -> Topology:
    """`v5p:4x4x8 -> 128 chips of 95 GiB`; raises ValueError for a name that is none."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in GENERATIONS:
        known = ", ".join(GENERATIONS)
        raise ValueError(
            f"a topology is a generation and its chips a dimension, such as v5p:4x4x8 or "
            f"v6e:16x16; the generations are {known}"
        )
    chips = math.prod(map(int, match[2].split("x")))
    if chips == 0:
        raise ValueError("a topology has at least one chip a dimension")
    return Topology(GENERATIONS[match[1]], chips)


def num_known_devices(config: Config) -> int | None:
    """The devices that the config itself speaks of, simulated or of a topology; None: the real."""
    if config.mesh.topology is None:
        return config.mesh.simulate or None
    try:
        return parse_topology(config.mesh.topology).num_devices
    except ValueError:
        return None  # a rule speaks


def known_platform(config: Config) -> str | None:
    """cpu where devices are simulated, tpu with a topology, None for the real ones."""
    if config.mesh.topology is not None:
        return "tpu"
    return "cpu" if config.mesh.simulate else None
