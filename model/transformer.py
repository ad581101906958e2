"""The decoder-only transformer: embedding, layers (scanned or unrolled), final norm, head."""

# B batch, T position, D model width, V vocabulary, L layers

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from configs.schema import ModelConfig
from model.layers import Attend, DecoderLayer, RMSNorm, RopeTables
from model.parameters import TABLE, assign_layers, declare
from model.placement import Placement
from model.remat import remat_policy
from model.rope import rope_frequencies, rope_tables
from parallelism import AttentionMask, TruncatedNormal, attention


class Transformer(nnx.Module):
    """Declared, not allocated: `parameter_specs` lists its parameters, `init_sharded` makes them.

    Inputs are in the folded order of the placement's layout (one device: plain order).
    """

    def __init__(
        self, config: ModelConfig, placement: Placement, compute_dtype: jnp.dtype
    ) -> None:
        self.config, self.placement, self.compute_dtype = config, placement, compute_dtype
        dtype, init = jnp.dtype(config.param_dtype), TruncatedNormal(config.init_std)
        table = (config.vocab_size, config.embed_dim)
        self.embedding = declare(table, ("vocab", "embed"), init, dtype, TABLE)
        self.layers = _declare_layers(config, placement)
        self.final_norm = RMSNorm(config)
        if not config.tie_embeddings:
            self.head = declare(table[::-1], ("embed", "vocab"), init, dtype, TABLE)

    def __call__(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array | None = None,
        segment_ids_BT: jax.Array | None = None,
    ) -> jax.Array:
        """Next-token logits: int32 [B, T] -> float32 [B, T, V].

        Positions default to 0..T-1 in the order of the row; tokens attend within their segment.
        """
        return self.logits(self.hidden(tokens_BT, positions_BT, segment_ids_BT))

    def hidden(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array | None = None,
        segment_ids_BT: jax.Array | None = None,
    ) -> jax.Array:
        """The final normed activations [B, T, D], in the compute dtype."""
        setup = self.placement.attention
        if positions_BT is None:
            order = setup.layout.permutation(tokens_BT.shape[1])
            positions_BT = jnp.broadcast_to(order, tokens_BT.shape)

        def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, None]:
            out = attention(
                query, key, value, mask=AttentionMask(), setup=setup, segment_ids=segment_ids_BT
            )
            return out, None

        x_BTD = self.embed(tokens_BT)
        x_BTD, _ = self.apply_layers(x_BTD, positions_BT, lambda _: attend, None)
        return self.final_norm(x_BTD)

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Rows of the embedding table, [B, T, D] in the compute dtype."""
        table = self.placement.weight(
            self.embedding[...], ("vocab", "embed"), self.compute_dtype
        )
        x_BTD = jnp.take(table, tokens_BT, axis=0, mode="clip")
        return self.placement.activation(x_BTD, "batch", "sequence", None)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """The output head: [B, T, D] -> float32 [B, T, V]."""
        if self.config.tie_embeddings:
            kernel, axes, form = self.embedding[...], ("vocab", "embed"), "BTD,VD->BTV"
        else:
            kernel, axes, form = self.head[...], ("embed", "vocab"), "BTD,DV->BTV"
        kernel = self.placement.weight(kernel, axes, self.compute_dtype)
        logits = jnp.einsum(form, x_BTD, kernel, preferred_element_type=jnp.float32)
        return self.placement.activation(logits, "batch", "sequence", "vocab")

    def apply_layers(
        self,
        x_BTD: jax.Array,
        positions_BT: jax.Array,
        attend_with: Callable[[Any], Attend],
        caches: Any,
    ) -> tuple[jax.Array, Any]:
        """Runs all layers; `attend_with(cache of a layer)` gives each its attention.

        `caches` is a tree with a leading layer axis (or None), and so is what comes back.
        """
        config = self.config
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        rope = rope_tables(positions_BT, frequencies)

        def run(layer: Any, x: jax.Array, rope: RopeTables, cache: Any) -> tuple[jax.Array, Any]:
            return layer(x, rope, attend_with(cache))

        if config.scan_layers:
            return _scan(self.layers, run, x_BTD, rope, caches, config.remat)
        return _unroll(self.layers, run, x_BTD, rope, caches, config.remat)


def _declare_layers(config: ModelConfig, placement: Placement) -> Any:
    if config.scan_layers:
        stacked = DecoderLayer(config, placement)
        assign_layers(stacked, tuple(range(config.num_layers)))
        return stacked
    layers = [DecoderLayer(config, placement) for _ in range(config.num_layers)]
    for number, layer in enumerate(layers):
        assign_layers(layer, number)
    return nnx.List(layers)


def _scan(
    stacked: Any, run: Callable, x: jax.Array, rope: RopeTables, caches: Any, remat: str
) -> tuple[jax.Array, Any]:
    graph, parameters = nnx.split(stacked)

    def body(x: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
        state, cache = layer
        return run(nnx.merge(graph, state), x, rope, cache)

    body = jax.checkpoint(body, policy=remat_policy(remat), prevent_cse=False)
    return jax.lax.scan(body, x, (parameters, caches))


def _unroll(
    layers: Any, run: Callable, x: jax.Array, rope: RopeTables, caches: Any, remat: str
) -> tuple[jax.Array, Any]:
    extras = []
    for number, layer in enumerate(layers):
        graph, parameters = nnx.split(layer)

        def body(x: jax.Array, state: Any, cache: Any, graph: Any = graph) -> Any:
            return run(nnx.merge(graph, state), x, rope, cache)

        cache = jax.tree.map(lambda leaf, number=number: leaf[number], caches)
        x, extra = jax.checkpoint(body, policy=remat_policy(remat))(x, parameters, cache)
        extras.append(extra)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *extras)
