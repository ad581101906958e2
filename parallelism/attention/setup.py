"""Where attention is computed: the mesh, the layout, the strategy and the kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from configs.attention_support import KERNELS, STRATEGIES
from parallelism.layout import Layout


@dataclass(frozen=True, kw_only=True)
class AttentionSetup:
    """Where and how attention is computed; `mesh` None is one device.

    `layout` is the order in which the sequence comes; with a mesh, its `cp` is the size of
    `context_axis`. `kernel` is auto or one of KERNELS; `block_size` is the most tokens on a side of
    a tile of the xla kernel. Raises ValueError for a name that does not exist.
    """

    layout: Layout
    mesh: Mesh | None = None
    strategy: str = "all_gather"
    kernel: str = "auto"
    block_size: int = 128
    batch_axes: tuple[str, ...] = ("data", "fsdp")
    context_axis: str = "context"
    heads_axis: str = "tensor"

    def __post_init__(self) -> None:
        names = {"strategy": STRATEGIES, "kernel": ("auto", *KERNELS)}
        for field, legal in names.items():
            if getattr(self, field) not in legal:
                raise ValueError(f"{field}={getattr(self, field)!r} is none of {', '.join(legal)}")

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu: of the mesh, or JAX's default."""
        if self.mesh is None or isinstance(self.mesh, AbstractMesh):
            return jax.default_backend()
        return str(self.mesh.devices.flat[0].platform)

    @property
    def exchanges_heads(self) -> bool:
        """Whether ranks share heads while they attend, and not tokens."""
        return self.strategy == "ulysses" and self.axis_size(self.context_axis) > 1

    @property
    def exchange_axis(self) -> str | None:
        """The mesh axis over which keys and values are exchanged, if they are."""
        alone = self.exchanges_heads or self.axis_size(self.context_axis) == 1
        return None if alone else self.context_axis

    @property
    def narrow_axis(self) -> str | None:
        """The mesh axis over which narrow keys are gathered for the heads that ranks share."""
        return self.context_axis if self.exchanges_heads else None

    def axis_size(self, axis: str | None) -> int:
        """Size of a mesh axis; 1 where it is not there."""
        return 1 if self.mesh is None else dict(self.mesh.shape).get(axis, 1)

    def ways(self, axes: str | tuple[str, ...] | None) -> int:
        """How many ways something is shared over one or more mesh axes."""
        return math.prod(map(self.axis_size, axes if isinstance(axes, tuple) else (axes,)))

    def spec(self, batch: int, num_heads: int) -> P:
        """How [B, T, N] is sharded before and after; axes that do not divide are left out."""
        batch_axes: tuple[str, ...] = self.batch_axes
        while batch % self.ways(batch_axes) != 0:
            batch_axes = batch_axes[:-1]
        heads = self.heads_axis if num_heads % self.axis_size(self.heads_axis) == 0 else None
        names = () if self.mesh is None else self.mesh.axis_names
        return P(
            tuple(axis for axis in batch_axes if axis in names),
            self.context_axis if self.context_axis in names else None,
            heads if heads in names else None,
        )

    def attending_spec(self, batch: int, num_heads: int) -> P:
        """How [B, T, N] is sharded while ranks attend: by heads where they exchange those."""
        before, context, heads = self.spec(batch, num_heads)
        if not self.exchanges_heads:
            return P(before, context, heads)
        return P(before, None, context if heads is None else (heads, context))
