"""A mixture of experts in place of the feed-forward layer, and how evenly it is loaded."""

# B batch, T position, D model width, E experts

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from configs.model_schema import ModelConfig, MoEConfig
from model.experts import Experts
from model.mlp import GatedMLP
from model.placement import Placement
from model.router import Router, Routing


class Load(NamedTuple):
    """What a layer's tokens asked of its experts; a sum over all tokens but padding."""

    chosen: jax.Array  # float32 [E]: how many chose each expert
    probability: jax.Array  # float32 [E]: the probabilities that the router gave each expert
    tokens: jax.Array  # float32


class MixtureOfExperts(nnx.Module):
    """Routed experts, and shared ones that see every token."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        self.router = Router(config, placement)
        self.experts = Experts(config, placement)
        width = config.moe.shared_dim
        self.shared = GatedMLP(config, width, placement) if width else None

    def __call__(self, x_BTD: jax.Array, valid_BT: jax.Array) -> tuple[jax.Array, Load]:
        routing = self.router(x_BTD)
        y_BTD = checkpoint_name(self.experts(x_BTD, routing), "mlp_out")
        if self.shared is not None:
            y_BTD = y_BTD + self.shared(x_BTD)
        return y_BTD, load(routing, valid_BT)


def load(routing: Routing, valid_BT: jax.Array) -> Load:
    """Counts tokens by expert."""
    num_experts = routing.shares.shape[-1]
    valid = valid_BT.astype(jnp.float32)
    is_chosen = routing.experts[..., None] == jnp.arange(num_experts)
    return Load(
        chosen=jnp.einsum("BTkE,BT->E", is_chosen.astype(jnp.float32), valid),
        probability=jnp.einsum("BTE,BT->E", routing.shares, valid),
        tokens=jnp.sum(valid),
    )


def balance_loss(loads: Sequence[Load]) -> jax.Array:
    """E * sum over experts of (chosen per token) * (mean probability), over all layers at once.

    1 per expert that a token goes to when the load is even. As transformers computes it, after
    the Switch Transformer (arXiv 2101.03961, equation 4).
    """
    num_experts = loads[0].chosen.shape[-1]
    tokens = jnp.maximum(sum(jnp.sum(one.tokens) for one in loads), 1)
    count = sum(one.chosen.reshape(-1, num_experts).sum(0) for one in loads) / tokens
    share = sum(one.probability.reshape(-1, num_experts).sum(0) for one in loads) / tokens
    return num_experts * jnp.sum(count * share)


def correct_routers(config: MoEConfig, parameters: Any, loads: Sequence[Load | None]) -> Any:
    """Moves the correction bias of every router a step towards an even load.

    An expert that was chosen more often than the mean goes down by `correction_rate`, one that
    was chosen less often up: DeepSeek-V3 (arXiv 2412.19437), section 2.1.2, after
    arXiv 2408.15664. `loads` are in the order of the parameters' `layers`.
    """
    if not config.correction_bias or config.correction_rate == 0:
        return parameters
    layers = dict(parameters["layers"])
    for slot, load in enumerate(loads):
        if load is not None:
            layers[str(slot)] = _corrected(config.correction_rate, layers[str(slot)], load)
    return {**parameters, "layers": layers}


def _corrected(rate: float, layer: Any, load: Load) -> Any:
    moe, router = layer["moe"], layer["moe"]["router"]
    missing = jnp.mean(load.chosen, axis=-1, keepdims=True) - load.chosen
    correction = router["correction"] + rate * jnp.sign(missing)
    return {**layer, "moe": {**moe, "router": {**router, "correction": correction}}}
