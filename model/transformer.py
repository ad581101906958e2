"""The decoder-only transformer: embedding, layers, final norm, head."""

# B batch, T position, D model width, V vocabulary

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from configs.model_schema import ModelConfig
from configs.schema import AdapterConfig
from model.attend import attend_within
from model.embedding import look_up
from model.layers import Tokens
from model.lora import freeze_all_but_factors
from model.moe import Load
from model.norm import RMSNorm
from model.parameters import TABLE, declare
from model.placement import Placement
from model.rope import rope_tables
from model.stack import AttendWith, declare_layers, run_layers
from parallelism import TruncatedNormal


class Output(NamedTuple):
    """Logits, and the load that each module in `layers` put on its experts (None: it has none)."""

    logits: jax.Array  # float32 [B, T, V]
    loads: list[Load | None]


class Activations(NamedTuple):
    """The end of a model but for its output head."""

    x: jax.Array  # [B, T, D] in the compute dtype
    loads: list[Load | None]  # as in Output
    index_losses: jax.Array | None  # float32 [L, B, T], where an indexer is trained


class Head(NamedTuple):
    """What makes logits of the last activations: a matrix [D, V], or, tied, the table [V, D]."""

    kernel: jax.Array  # gathered, in the compute dtype
    is_table: bool
    soft_cap: float | None


class Transformer(nnx.Module):
    """Declared, not allocated: `parameter_specs` lists its parameters, `init_sharded` makes them.

    Inputs are in the folded order of the placement's layout (one device: plain order).
    """

    def __init__(
        self,
        config: ModelConfig,
        placement: Placement,
        compute_dtype: jnp.dtype,
        adapter: AdapterConfig | None = None,
    ) -> None:
        self.config, self.placement, self.compute_dtype = config, placement, compute_dtype
        dtype, init = jnp.dtype(config.param_dtype), TruncatedNormal(config.init_std)
        table = (config.vocab_size, config.embed_dim)
        self.embedding = declare(table, ("vocab", "embed"), init, dtype, TABLE)
        self.layers = declare_layers(config, placement, adapter)
        self.final_norm = RMSNorm(config, (config.embed_dim,))
        if not config.tie_embeddings:
            self.head = declare(table[::-1], ("embed", "vocab"), init, dtype, TABLE)
        self.trains_routers = adapter is None or adapter.name == "none"
        if not self.trains_routers:
            freeze_all_but_factors(self)

    def __call__(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array | None = None,
        segment_ids_BT: jax.Array | None = None,
    ) -> jax.Array:
        """Next-token logits: int32 [B, T] -> float32 [B, T, V].

        Positions default to 0..T-1 in the order of the row; tokens attend within their segment.
        """
        return self.forward(tokens_BT, positions_BT, segment_ids_BT).logits

    def forward(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array | None = None,
        segment_ids_BT: jax.Array | None = None,
    ) -> Output:
        """As calling it, with the load of the experts."""
        found = self.activations(tokens_BT, positions_BT, segment_ids_BT)
        return Output(self.logits(found.x), found.loads)

    def activations(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array | None = None,
        segment_ids_BT: jax.Array | None = None,
    ) -> Activations:
        """What the output head reads, and what the losses beside it do."""
        if positions_BT is None:
            order = self.placement.row_layout.permutation(tokens_BT.shape[1])
            positions_BT = jnp.broadcast_to(order, tokens_BT.shape)
        segments = segment_ids_BT if self.placement.packed else None
        attend = attend_within(self.placement, segments)
        valid = None if segment_ids_BT is None else segment_ids_BT > 0
        x_BTD, index_losses, loads = self.apply_layers(
            self.embed(tokens_BT), positions_BT, lambda _: attend, valid_BT=valid
        )
        return Activations(self.final_norm(x_BTD), loads, index_losses)

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Rows of the embedding table, [B, T, D] in the compute dtype."""
        x_BTD = look_up(self.embedding[...], tokens_BT, self.placement, self.compute_dtype)
        if self.config.scale_embeddings:
            x_BTD = x_BTD * jnp.asarray(self.config.embed_dim**0.5, x_BTD.dtype)
        return self.placement.activation(x_BTD, "batch", "sequence", None)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """The output head: [B, T, D] -> float32 [B, T, V]."""
        head = self.output_head()
        form = "BTD,VD->BTV" if head.is_table else "BTD,DV->BTV"
        logits = jnp.einsum(form, x_BTD, head.kernel, preferred_element_type=jnp.float32)
        if (cap := head.soft_cap) is not None:
            logits = cap * jnp.tanh(logits / cap)
        return self.placement.activation(logits, "batch", "sequence", "vocab")

    def output_head(self) -> Head:
        """The output head, gathered: for those who make logits of it in their own way."""
        tied = self.config.tie_embeddings
        kernel, axes = (
            (self.embedding[...], ("vocab", "embed"))
            if tied
            else (self.head[...], ("embed", "vocab"))
        )
        kernel = self.placement.weight(kernel, axes, self.compute_dtype)
        return Head(kernel, tied, self.config.logit_soft_cap)

    def apply_layers(
        self,
        x_BTD: jax.Array,
        positions_BT: jax.Array,
        attend_with: AttendWith,
        caches: Any = None,
        valid_BT: jax.Array | None = None,
    ) -> tuple[jax.Array, Any, list[Load | None]]:
        """Runs all layers; `attend_with(cache of a layer)` gives each its attention.

        `caches` is a tree with a leading layer axis (or None), and so is what comes back.
        """
        if valid_BT is None:
            valid_BT = jnp.ones(positions_BT.shape, bool)
        tokens = Tokens(rope_tables(self.config, positions_BT), valid_BT)
        return run_layers(
            self.layers,
            self.config,
            x_BTD,
            tokens=tokens,
            attend_with=attend_with,
            caches=caches,
        )
