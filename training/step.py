"""One optimizer step and one evaluation step, as functions to be compiled once."""

# A microbatches of one step, B batch, T position

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from configs.schema import TrainConfig
from model import Load, Transformer, balance_loss, correct_routers, parameter_roles, with_parameters
from model.lora import joined, trained_part
from training.layer_stats import LayerStats
from training.loss import weighted_sum
from training.loss_pieces import model_losses
from training.optimizer import Hyperparameters, Rule, clip, global_norm
from training.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, Any]


class Sums(NamedTuple):
    """Sums over a batch's tokens: losses and weights, and what each layer's experts were asked."""

    loss: jax.Array
    weight: jax.Array
    loads: list[Load | None]
    index_loss: jax.Array | None  # where an indexer is trained, mean over layers


def batch_sums(model: Transformer, parameters: Any, batch: Batch, logits_bytes: int) -> Sums:
    """Sum of the batch's token losses, the number of scored tokens, and the experts' loads.

    Logits of more than `logits_bytes` on a device are made in pieces (loss_pieces.py).
    """
    filled = with_parameters(model, parameters)
    found = filled.activations(batch["tokens"], batch["positions"], batch["segment_ids"])
    with jax.named_scope("loss"):
        losses = model_losses(filled, found.x, batch["targets"], logits_bytes)
        loss, weight = weighted_sum(losses, batch["weights"])
        index_loss = None
        if found.index_losses is not None:
            index_loss, _ = weighted_sum(found.index_losses.mean(0), batch["weights"])
        return Sums(loss, weight, found.loads, index_loss)


def objective(
    model: Transformer, parameters: Any, batch: Batch, logits_bytes: int
) -> tuple[jax.Array, Sums]:
    """What is minimised, times the number of scored tokens: their loss, the experts' balance and
    the indexers' loss.
    """
    sums = batch_sums(model, parameters, batch, logits_bytes)
    total, config = sums.loss, model.config
    loads = [load for load in sums.loads if load]
    if loads and config.moe.balance_loss:
        total = total + config.moe.balance_loss * balance_loss(loads) * sums.weight
    if sums.index_loss is not None:
        total = total + config.indexer.loss * sums.index_loss
    return total, sums


def make_train_step(
    model: Transformer,
    rule: Rule,
    options: TrainConfig,
    layer_stats: LayerStats | None = None,
) -> Callable[[TrainState, Batch, Hyperparameters], tuple[TrainState, Metrics]]:
    """The function (state, batch, numbers) -> (next state, metrics).

    The loss and its gradient are those of the global mean over scored tokens, whatever the
    number of microbatches and devices; the balance of experts is that of each microbatch. When
    either is not finite, or nothing is scored, parameters and optimizer state stay as they are;
    `metrics["finite"]` tells. `metrics["layers"]` is there with `layer_stats`: of the gradient
    before clipping, and of the parameters after the update.
    """

    def train_step(
        state: TrainState, batch: Batch, numbers: Hyperparameters
    ) -> tuple[TrainState, Metrics]:
        trained = trained_part(state.parameters, parameter_roles(model))
        sums, grads = _mean_gradient(model, trained, state.parameters, batch, options)
        weight = sums.weight
        loss = sums.loss / jnp.maximum(weight, 1.0)
        with jax.named_scope("optimizer"):
            grad_norm = global_norm(grads)
            finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
            updates, optimizer = rule(numbers).update(
                clip(grads, grad_norm, numbers["clip_norm"]), state.optimizer, trained
            )
            parameters = joined(optax.apply_updates(trained, updates), state.parameters)
            if model.trains_routers:
                parameters = correct_routers(model.config.moe, parameters, sums.loads)
            apply = finite & (weight > 0)
            kept = TrainState(
                state.step + 1,
                _select(apply, parameters, state.parameters),
                _select(apply, optimizer, state.optimizer),
            )
        metrics: Metrics = {
            "loss": loss,
            "weight": weight,
            "padding_fraction": jnp.mean(batch["segment_ids"] == 0),
            "grad_norm": grad_norm,
            "param_norm": global_norm(kept.parameters),
            "finite": finite,
        }
        if sums.index_loss is not None:
            metrics["index_loss"] = sums.index_loss / jnp.maximum(weight, 1.0)
        if layer_stats is not None:
            metrics["layers"] = layer_stats.measure(kept.step, grads, kept.parameters)
        return kept, metrics

    return train_step


def make_eval_step(
    model: Transformer, options: TrainConfig
) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
    """The function (parameters, batch) -> (sum of token losses, scored tokens), float32 scalars."""

    def eval_step(parameters: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        sums = batch_sums(model, parameters, batch, options.logits_bytes)
        return sums.loss, sums.weight

    return eval_step


def _mean_gradient(
    model: Transformer, trained: Any, parameters: Any, batch: Batch, options: TrainConfig
) -> tuple[Sums, Any]:
    """Sums over all microbatches, and the gradient of the mean objective by what is trained."""

    def value(part: Any, microbatch: Batch) -> tuple[jax.Array, Sums]:
        return objective(model, joined(part, parameters), microbatch, options.logits_bytes)

    def gradient(microbatch: Batch) -> tuple[Sums, Any]:
        (_, sums), grads = jax.value_and_grad(value, has_aux=True)(trained, microbatch)
        return sums, grads

    if options.grad_accum == 1:
        sums, grads = gradient(batch)
    else:
        microbatches = _microbatches(batch, options.grad_accum)
        like = jax.eval_shape(gradient, jax.tree.map(lambda x: x[0], microbatches))
        (sums, grads), _ = jax.lax.scan(
            lambda so_far, microbatch: (jax.tree.map(jnp.add, so_far, gradient(microbatch)), None),
            jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), like),
            microbatches,
        )
    scale = 1.0 / jnp.maximum(sums.weight, 1.0)
    return sums, jax.tree.map(lambda grad, of: (grad * scale).astype(of.dtype), grads, trained)


def _microbatches(batch: Batch, grad_accum: int) -> Batch:
    """[B, T] -> [A, B/A, T]: every A-th row, so that each device splits its own rows."""
    return jax.tree.map(
        lambda x: jnp.swapaxes(x.reshape(x.shape[0] // grad_accum, grad_accum, -1), 0, 1), batch
    )


def _select(condition: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)
