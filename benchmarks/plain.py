"""A plain train step to measure against: dense masked attention, optax AdamW, one jit.

Written as one would without a framework: no scan, no remat, no sharding. The same shapes and the
same number of parameters as FoldText's model.
"""

# B batch, T position, D model width, N query heads, K key/value heads, H head width

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs.model_schema import ModelConfig


def plain_step(model: ModelConfig, dtype: Any, seq_len: int) -> tuple[Any, Any]:
    """Returns (state, step) with step(state, tokens, targets) -> (state, loss), jitted."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1))
    parameters = _parameters(model)
    mask = jnp.tril(jnp.ones((seq_len, seq_len), bool))
    positions = jnp.arange(seq_len, dtype=jnp.float32)[:, None, None]
    half = np.arange(0, model.head_dim, 2) / model.head_dim
    angles = positions * model.rope_theta**-half

    def loss_of(parameters: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda x: x.astype(dtype), parameters)
        x = p["embedding"][tokens]
        for layer in p["layers"]:
            x = x + _attention(layer, _norm(x, layer["norm_1"]), mask, angles)
            y = _norm(x, layer["norm_2"])
            x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
        logits = (_norm(x, p["norm"]) @ p["embedding"].T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    @jax.jit
    def step(state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        parameters, optimizer_state = state
        loss, grads = jax.value_and_grad(loss_of)(parameters, tokens, targets)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, parameters)
        return (optax.apply_updates(parameters, updates), optimizer_state), loss

    return (parameters, optimizer.init(parameters)), step


def _parameters(model: ModelConfig) -> Any:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) * 0.02, jnp.float32)

    d, n, k, h, f = (
        model.embed_dim,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        model.mlp_dim,
    )
    layers = [
        {
            "norm_1": jnp.ones(d),
            "norm_2": jnp.ones(d),
            "query": draw(d, n, h),
            "key": draw(d, k, h),
            "value": draw(d, k, h),
            "out": draw(n, h, d),
            "gate": draw(d, f),
            "up": draw(d, f),
            "down": draw(f, d),
        }
        for _ in range(model.num_layers)
    ]
    return {"embedding": draw(model.vocab_size, d), "layers": layers, "norm": jnp.ones(d)}


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _rope(x: jax.Array, angles: jax.Array) -> jax.Array:
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
        x.dtype
    )


def _attention(layer: Any, x: jax.Array, mask: jax.Array, angles: jax.Array) -> jax.Array:
    query = _rope(jnp.einsum("BTD,DNH->BTNH", x, layer["query"]), angles)
    key = _rope(jnp.einsum("BTD,DKH->BTKH", x, layer["key"]), angles)
    value = jnp.einsum("BTD,DKH->BTKH", x, layer["value"])
    groups = query.shape[2] // key.shape[2]
    query = query.reshape(*key.shape[:3], groups, -1)
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", query, key).astype(jnp.float32)
    scores = jnp.where(mask, scores / np.sqrt(query.shape[-1]), -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    out = jnp.einsum("BKGTS,BSKH->BTKGH", weights, value)
    return jnp.einsum("BTNH,NHD->BTD", out.reshape(*out.shape[:2], -1, out.shape[-1]), layer["out"])
