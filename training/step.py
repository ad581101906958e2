"""One optimizer step and one evaluation step, as functions to be compiled once."""

# A microbatches of one step, B batch, T position

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from model import Transformer, with_parameters
from training.loss import token_losses, weighted_sum
from training.optimizer import Hyperparameters, Rule, clip
from training.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


def loss_sum(model: Transformer, parameters: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sum of the batch's token losses and the number of scored tokens, float32 scalars."""
    filled = with_parameters(model, parameters)
    logits = filled(batch["tokens"], batch["positions"], batch["segment_ids"])
    return weighted_sum(token_losses(logits, batch["targets"]), batch["weights"])


def make_train_step(
    model: Transformer, rule: Rule, grad_accum: int
) -> Callable[[TrainState, Batch, Hyperparameters], tuple[TrainState, Metrics]]:
    """The function (state, batch, numbers) -> (next state, metrics).

    The loss and its gradient are those of the global mean over scored tokens, whatever the
    number of microbatches and devices. When either is not finite, or nothing is scored,
    parameters and optimizer state stay as they are; `metrics["finite"]` tells.
    """

    def train_step(
        state: TrainState, batch: Batch, numbers: Hyperparameters
    ) -> tuple[TrainState, Metrics]:
        loss, weight, grads = _mean_gradient(model, state.parameters, batch, grad_accum)
        with jax.named_scope("optimizer"):
            grad_norm = optax.tree.norm(grads)
            finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
            updates, optimizer = rule(numbers).update(
                clip(grads, grad_norm, numbers["clip_norm"]), state.optimizer, state.parameters
            )
            parameters = optax.apply_updates(state.parameters, updates)
            apply = finite & (weight > 0)
            kept = TrainState(
                state.step + 1,
                _select(apply, parameters, state.parameters),
                _select(apply, optimizer, state.optimizer),
            )
        return kept, {
            "loss": loss,
            "weight": weight,
            "grad_norm": grad_norm,
            "param_norm": optax.tree.norm(kept.parameters),
            "finite": finite,
        }

    return train_step


def make_eval_step(model: Transformer) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
    """The function (parameters, batch) -> (sum of token losses, scored tokens)."""
    return lambda parameters, batch: loss_sum(model, parameters, batch)


def _mean_gradient(
    model: Transformer, parameters: Any, batch: Batch, grad_accum: int
) -> tuple[jax.Array, jax.Array, Any]:
    """Mean loss over all microbatches, its weight, and the mean's gradient."""

    def gradient(microbatch: Batch) -> tuple[tuple[jax.Array, jax.Array], Any]:
        return jax.value_and_grad(lambda p: loss_sum(model, p, microbatch), has_aux=True)(
            parameters
        )

    if grad_accum == 1:
        (total, weight), grads = gradient(batch)
    else:
        zero = ((jnp.zeros(()), jnp.zeros(())), jax.tree.map(jnp.zeros_like, parameters))
        (total, weight), grads = jax.lax.scan(
            lambda sums, microbatch: (jax.tree.map(jnp.add, sums, gradient(microbatch)), None),
            zero,
            _microbatches(batch, grad_accum),
        )[0]
    scale = 1.0 / jnp.maximum(weight, 1.0)
    return total * scale, weight, jax.tree.map(lambda grad: grad * scale.astype(grad.dtype), grads)


def _microbatches(batch: Batch, grad_accum: int) -> Batch:
    """[B, T] -> [A, B/A, T]: every A-th row, so that each device splits its own rows."""
    return jax.tree.map(
        lambda x: jnp.swapaxes(x.reshape(x.shape[0] // grad_accum, grad_accum, -1), 0, 1), batch
    )


def _select(condition: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)
