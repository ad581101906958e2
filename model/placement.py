"""Where a model's arrays live: the one object through which layers meet the mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from parallelism import DEFAULT_RULES, AttentionSetup, Layout, Rules, exchange

# Weights are gathered over these logical axes just before they are used; tensor axes stay split.
_GATHERED = frozenset({"embed", "expert_embed"})


@dataclass(frozen=True)
class Placement:
    """Mesh, sharding rules and attention set-up of a model; the default is one device.

    `reorder` says who folds rows into the attention's layout: "batch", the loader, once; or
    "attention", the model, which then runs in contiguous order and folds around each attention.
    `packed=False` promises rows of one segment with padding at their ends alone: no token before
    it sees it, so attention needs no segments.
    `constrain_activations=False` leaves activations to the compiler, for batches that are smaller
    than the mesh (generation).
    """

    attention: AttentionSetup = field(
        default_factory=lambda: AttentionSetup(mesh=None, layout=Layout("contiguous", 1))
    )
    rules: Rules = DEFAULT_RULES
    reorder: Literal["batch", "attention"] = "batch"
    packed: bool = True
    constrain_activations: bool = True

    @property
    def row_layout(self) -> Layout:
        """The order in which the model's rows lie over the context axis."""
        layout = self.attention.layout
        return layout if self.reorder == "batch" else Layout("contiguous", layout.cp)

    def fold(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Takes [B, T, ...] from the order of the rows to that of the attention."""
        return self._exchange(x, axes, folded=False)

    def unfold(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Takes [B, T, ...] back from the order of the attention to that of the rows."""
        return self._exchange(x, axes, folded=True)

    def _exchange(self, x: jax.Array, axes: tuple[str | None, ...], folded: bool) -> jax.Array:
        mesh, layout = self.attention.mesh, self.attention.layout
        if mesh is None or layout == self.row_layout:
            return x
        spec = self.rules.spec(axes, x.shape, mesh)

        def body(shard: jax.Array) -> jax.Array:
            return exchange(shard, layout, 1, self.attention.context_axis, folded=folded)

        with jax.named_scope("exchange"):
            return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    def by_token(self, body: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        """`body`, from [B, T, X] to [B, T, Y] token by token, run by each device on its own."""
        mesh = self.attention.mesh
        if mesh is None:
            return body

        def run(x: jax.Array) -> jax.Array:
            spec = self.rules.spec(("batch", "sequence", None), x.shape, mesh)
            return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)

        return run

    def activation(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Constrains an activation to the mesh axes of its logical axes."""
        return self.constrain(x, axes) if self.constrain_activations else x

    def constrain(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        """Constrains an array to the mesh axes of its logical axes."""
        mesh = self.attention.mesh
        if mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, self.rules.sharding(mesh, axes, x.shape))

    def gathered(self, axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """The logical axes of a weight that are still split where it is used."""
        return tuple(None if axis in _GATHERED else axis for axis in axes)

    def weight(self, x: jax.Array, axes: tuple[str | None, ...], dtype: jnp.dtype) -> jax.Array:
        """Casts a weight to the compute dtype and gathers its fsdp and context shards.

        Its gradient, summed over the devices' own tokens, is kept in shards only: a reduce-scatter
        where the compiler has one.
        """
        mesh = self.attention.mesh
        x = x.astype(dtype)
        if mesh is None:
            return x
        stored = self.rules.sharding(mesh, axes, x.shape)
        gathered = self.rules.sharding(mesh, self.gathered(axes), x.shape)
        if stored == gathered:
            return x
        return _gather(x, stored, gathered)

    def of_own_heads(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        """A gathered weight of which ranks that share heads over the context axis read their own.

        Its gradient comes split by heads. It is split over the other dimensions too before heads
        are brought together, as compilers find no short way to do both at once.
        """
        setup = self.attention
        if setup.mesh is None or not setup.exchanges_heads:
            return x
        shared = (setup.heads_axis, setup.context_axis)
        table = self.rules.table
        rest = {
            axis: [name for name in table[axis] or () if name not in shared]
            for axis in axes
            if axis in _GATHERED
        }
        rules = self.rules.override({**rest, "heads": shared})
        return _with_gradient(x, rules.sharding(setup.mesh, axes, x.shape))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _with_gradient(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """The same array, with its gradient laid out in a way of its own."""
    return x


@_with_gradient.defjvp
def _with_gradient_tangent(
    sharding: NamedSharding, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return primals[0], jax.lax.with_sharding_constraint(tangents[0], sharding)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _gather(x: jax.Array, stored: NamedSharding, gathered: NamedSharding) -> jax.Array:
    """Lays a stored weight out as `gathered`; its gradient is only ever asked for as `stored`.

    A plain constraint would ask for the whole gradient on every device before it is cut.
    """
    # The first constraint keeps what is saved for the backward pass in shards.
    x = jax.lax.with_sharding_constraint(x, stored)
    return jax.lax.with_sharding_constraint(x, gathered)


@_gather.defjvp
def _gather_tangent(
    stored: NamedSharding,
    gathered: NamedSharding,
    primals: tuple[jax.Array],
    tangents: tuple[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    tangent = jax.lax.with_sharding_constraint(tangents[0], stored)
    return _gather(primals[0], stored, gathered), tangent
