"""Which experts a token goes to, and how much each of them counts. All of it in float32."""

# B batch, T position, D model width, E experts, k experts per token

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from configs.model_schema import ModelConfig, MoEConfig
from model.parameters import TABLE, VECTOR, declare
from model.placement import Placement
from parallelism import Constant, TruncatedNormal


class Routing(NamedTuple):
    """Where every token goes."""

    experts: jax.Array  # int32 [B, T, k]
    weights: jax.Array  # float32 [B, T, k]
    shares: jax.Array  # float32 [B, T, E], sums to 1: what the load-balance loss sees


class Router(nnx.Module):
    """Scores by softmax or sigmoid, a choice of groups if there are any, then the top k.

    Sources: softmax top-k, arXiv 2101.03961; group-limited choice, DeepSeek-V2 (arXiv 2405.04434);
    sigmoid scores with a correction bias, DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
    """

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        dtype, moe = jnp.dtype(config.param_dtype), config.moe
        shape, init = (config.embed_dim, moe.num_experts), TruncatedNormal(config.init_std)
        self.kernel = declare(shape, ("embed", None), init, dtype, TABLE)
        self.bias = _per_expert(moe, dtype) if moe.router_bias else None
        self.correction = _per_expert(moe, jnp.dtype("float32")) if moe.correction_bias else None
        self.moe, self.placement = moe, placement

    def __call__(self, x_BTD: jax.Array) -> Routing:
        kernel = self.placement.weight(self.kernel[...], ("embed", None), jnp.dtype(jnp.float32))
        logits = x_BTD.astype(jnp.float32) @ kernel
        if self.bias is not None:
            logits = logits + self.bias[...].astype(jnp.float32)
        sigmoid = self.moe.scoring == "sigmoid"
        scores = jax.nn.sigmoid(logits) if sigmoid else jax.nn.softmax(logits, axis=-1)
        # Left to itself, the partitioner would have every device choose for all tokens.
        experts = self.placement.by_token(self._choose)(self._preferences(scores))
        weights = jnp.take_along_axis(scores, experts, axis=-1)
        if self.moe.normalize:
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
        shares = scores / jnp.sum(scores, axis=-1, keepdims=True) if sigmoid else scores
        return Routing(experts, weights * self.moe.weight_scale, shares)

    def _preferences(self, scores_BTE: jax.Array) -> jax.Array:
        """What experts are chosen by."""
        chosen_by = jax.lax.stop_gradient(scores_BTE)
        if self.correction is None:
            return chosen_by
        return chosen_by + jax.lax.stop_gradient(self.correction[...])

    def _choose(self, chosen_by_BTE: jax.Array) -> jax.Array:
        """The top k experts, int32 [B, T, k], of the best groups if there are any."""
        if self.moe.num_groups > 1:
            chosen_by_BTE = self._of_best_groups(chosen_by_BTE)
        return jax.lax.top_k(chosen_by_BTE, self.moe.experts_per_token)[1]

    def _of_best_groups(self, chosen_by_BTE: jax.Array) -> jax.Array:
        """The same, but -inf for experts of groups that are not kept."""
        grouped = chosen_by_BTE.reshape(*chosen_by_BTE.shape[:-1], self.moe.num_groups, -1)
        best = jax.lax.top_k(grouped, 1 if self.moe.group_score == "max" else 2)[0].sum(-1)
        kept = jax.lax.top_k(best, self.moe.top_groups)[1]
        is_kept = jnp.any(kept[..., None] == jnp.arange(self.moe.num_groups), axis=-2)
        return jnp.where(is_kept[..., None], grouped, -jnp.inf).reshape(chosen_by_BTE.shape)


def _per_expert(moe: MoEConfig, dtype: jnp.dtype) -> nnx.Param:
    return declare((moe.num_experts,), (None,), Constant(0.0), dtype, VECTOR)
