"""One attention over a mesh: the programs of a rank, forward and backward, tied together.

Every rank runs the same program on its shard: cut it into blocks, let the strategy bring queries
and keys together as the plan says, join the blocks again. The forward and the backward pass are two
such programs, so nothing is kept between them but the inputs, the output and a log-sum-exp per
query and head. Legend: B batch, T queries, S keys, N query heads, K key/value heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from parallelism.attention.blocks import Blocks
from parallelism.attention.blockwise import begin, finish
from parallelism.attention.loops import own_row
from parallelism.attention.plan import Plan
from parallelism.attention.selection import Selecting
from parallelism.attention.tiles import (
    KeyGradients,
    Keys,
    OwnGradients,
    Queries,
    Saved,
    Softmax,
    Task,
)
from parallelism.attention.tiling import cut_heads, cut_tokens, join_heads, join_tokens


class Tokens(NamedTuple):
    """A number per token, of the queries and of the keys."""

    query: Any  # int32 [B, T]
    key: Any  # int32 [B, S]


class Inputs(NamedTuple):
    """What attention reads. With weights, keys are narrow, [B, S, 1, R], and values None."""

    query: Any  # [B, T, N, H]
    key: Any  # [B, S, K, H]
    value: Any  # [B, S, K, Hv] or None
    segments: Any = None  # Tokens or None
    positions: Any = None  # Tokens or None
    sinks: Any = None  # [N] or None
    weights: Any = None  # [any, K, ...] or None
    selecting: Any = None  # Selecting, [B, T, ...], or None
    index: Any = None  # [B, S, D] or None: keys of the index


class Strategy(Protocol):
    """How the ranks' queries and keys meet, on blocks."""

    def forward(
        self, task: Task, softmax: Softmax, queries: Queries, keys: Keys, weights: Any = None
    ) -> Softmax:
        """Add to the running softmax all keys that this rank's queries attend to."""

    def backward(
        self, task: Task, own: OwnGradients, saved: Saved, keys: Keys, weights: Any = None
    ) -> tuple[OwnGradients, KeyGradients]:
        """Add this rank's own gradients; and give those of its keys, from all ranks' queries."""


@dataclass(frozen=True)
class Problem:
    """All that is static about one attention; `spec` shards [B, T, N] over `mesh`.

    `narrow_axis` shares the tokens of narrow keys where `spec` shares heads over it.
    """

    task: Task
    strategy: Strategy
    mesh: Mesh | None
    spec: P
    narrow_axis: str | None = None

    def spread(self, body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """A program that sees shards, as a function of whole arrays."""
        body = functools.partial(body, self)
        if self.mesh is None:
            return body
        return jax.shard_map(
            body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    @property
    def input_specs(self) -> Inputs:
        """How each input is sharded."""
        batch, sequence, heads = self.spec
        tokens = P(batch, sequence)
        keys = P(batch, sequence or self.narrow_axis) if self.narrow else self.spec
        weights = P(None, heads)
        return Inputs(self.spec, keys, keys, tokens, tokens, P(heads), weights, tokens, tokens)

    @property
    def token_spec(self) -> P:
        """How [B, T] is sharded."""
        return P(*self.spec[:2])

    @property
    def narrow(self) -> bool:
        """Whether keys and values are made from something narrower, which all heads share."""
        return self.task.rule.expand is not None

    @property
    def token_axes(self) -> tuple[str, ...]:
        """The mesh axes that share the tokens."""
        return self._sharing(self.spec[0], self.spec[1])

    @property
    def head_axes(self) -> tuple[str, ...]:
        """The mesh axes that share the heads and leave narrow keys whole."""
        return tuple(axis for axis in self._sharing(self.spec[2]) if axis != self.narrow_axis)

    def _sharing(self, *entries: Any) -> tuple[str, ...]:
        """The mesh axes of some entries of `spec` that have several devices."""
        sizes = {} if self.mesh is None else self.mesh.shape
        return tuple(axis for axis in _flat(*entries) if sizes.get(axis, 1) > 1)


class Outputs(NamedTuple):
    """What attention gives; index_loss is that of an index that is trained (selection.py)."""

    out: Any  # [B, T, N, Hv]
    index_loss: Any = None  # float32 [B, T] or None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_sharded(problem: Problem, inputs: Inputs) -> Outputs:
    """Attention over whole arrays, in the dtype of the query."""
    return _forward(problem, inputs)[0]


def _forward(problem: Problem, inputs: Inputs) -> tuple[Outputs, tuple[Any, ...]]:
    out_specs = (Outputs(problem.spec, problem.token_spec), problem.spec)
    run = problem.spread(_forward_shard, (problem.input_specs,), out_specs)
    # A remat policy that keeps this name needs no second forward pass: all are under it.
    given, lse = jax.tree.map(lambda x: checkpoint_name(x, "attention_out"), run(inputs))
    return given, (inputs, given.out, lse)


def _backward(problem: Problem, kept: tuple[Any, ...], gradients: Outputs) -> tuple[Inputs]:
    (inputs, out, lse), (out_gradient, index_gradient) = kept, gradients
    # Else the compiler sees that the forward pass has made the same exchange, and keeps it.
    if problem.task.axis is not None:
        inputs, out_gradient = lax.optimization_barrier((inputs, out_gradient))
    elif problem.narrow_axis is not None:
        key, out_gradient = lax.optimization_barrier((inputs.key, out_gradient))
        inputs = inputs._replace(key=key)
    delta = jnp.sum(out.astype(jnp.float32) * out_gradient.astype(jnp.float32), axis=-1)
    spec, specs = problem.spec, problem.input_specs
    in_specs = (specs, problem.token_spec, spec, spec, spec, spec)
    run = problem.spread(_backward_shard, in_specs, specs)
    found = run(inputs, index_gradient, lse, delta, out, out_gradient)
    return (found._replace(sinks=_sinks_gradient(inputs.sinks, lse, delta)),)


attend_sharded.defvjp(_forward, _backward)


def _sinks_gradient(sinks: jax.Array | None, lse: jax.Array, delta: jax.Array) -> jax.Array | None:
    """A sink takes its weight away from the output and gives nothing back."""
    if sinks is None:
        return None
    weight = jnp.exp(sinks.astype(jnp.float32) - lse)
    return -jnp.sum(weight * delta, axis=(0, 1)).astype(sinks.dtype)


def _forward_shard(problem: Problem, inputs: Inputs) -> tuple[Outputs, jax.Array]:
    """Output, and log-sum-exp, float32 [B, T, N], of one rank's queries."""
    task, sinks = problem.task, inputs.sinks
    queries, keys = _cut(task, _with_all_tokens(problem, inputs))
    grouped = None if sinks is None else sinks.reshape(-1, task.rule.groups)
    softmax = begin(task.rule, queries.query, grouped)
    out, lse, index = finish(problem.strategy.forward(task, softmax, queries, keys, inputs.weights))
    blocks = task.plan.query
    out = join_heads(out.astype(inputs.query.dtype), blocks)
    return Outputs(out, _index_loss(problem, inputs, index)), join_heads(lse, blocks)


def _index_loss(problem: Problem, inputs: Inputs, index: jax.Array | None) -> jax.Array | None:
    """Cross entropy of the index's shares against those of the attention, mean over heads."""
    if index is None:
        return None
    attended = join_heads(index, problem.task.plan.query).mean(-1)
    return inputs.selecting.total - _mean_over(attended, problem.head_axes)


def _backward_shard(
    problem: Problem, inputs: Inputs, index_gradient: jax.Array | None, *per_query: jax.Array
) -> Inputs:
    """Gradients of one rank's queries, keys and values, of the weights that all share, and of
    the index if it is trained.
    """
    task, plan, weights = problem.task, problem.task.plan, inputs.weights
    queries, keys = _cut(task, _with_all_tokens(problem, inputs))
    cut = [cut_heads(x, plan.query, queries.query.shape[2]) for x in per_query]
    saved = Saved(queries, *cut)._replace(index_gradient=_cut_all(index_gradient, plan.query))
    own, of_keys = problem.strategy.backward(
        task, _no_own(task, queries, weights), saved, keys, weights
    )
    (dk, dv, _), dw = of_keys, own.weights
    if problem.narrow:  # each rank has the part of its tokens and of its heads
        dk, dw = _sum_over(dk, problem.head_axes), _sum_over(dw, problem.token_axes)
    dtype = inputs.query.dtype
    gradients = Inputs(
        query=join_heads(own.query.astype(dtype), plan.query),
        key=_of_own_tokens(problem, join_heads(dk.swapaxes(-1, -2), plan.key)).astype(dtype),
        value=None if dv is None else join_heads(dv.swapaxes(-1, -2).astype(dtype), plan.key),
        weights=None if dw is None else dw.astype(weights.dtype),
    )
    if not task.rule.trains_index:
        return gradients
    (by_query, by_weight), by_key = _index_gradients(problem, own.index, of_keys.index)
    selecting = Selecting(by_query.astype(inputs.selecting.query.dtype), by_weight, None)
    return gradients._replace(selecting=selecting, index=by_key.astype(inputs.index.dtype))


def _no_own(task: Task, queries: Queries, weights: Any) -> OwnGradients:
    """Zeros for a rank's own gradients."""
    of_index = None
    if task.rule.trains_index:
        of_index = (queries.selecting.query, queries.selecting.weights)
    return jax.tree.map(_zeros, OwnGradients(queries.query, weights, of_index))


def _index_gradients(problem: Problem, by_query: Any, by_key: jax.Array) -> Any:
    """Those of index queries and weights, [B, T, ...], and of index keys, [B, S, D].

    Each rank has compared with its own heads; the mean over all heads is the mean of those.
    """
    plan = problem.task.plan
    by_query = jax.tree.map(lambda x: join_tokens(x, plan.query), by_query)
    found = (by_query, join_tokens(by_key, plan.key))
    return jax.tree.map(lambda x: _mean_over(x, problem.head_axes), found)


def _zeros(x: jax.Array) -> jax.Array:
    return jnp.zeros(x.shape, jnp.float32)


@jax.named_scope("exchange")
def _with_all_tokens(problem: Problem, inputs: Inputs) -> Inputs:
    """The inputs with the narrow keys of all ranks, where ranks share heads."""
    if problem.narrow_axis is None:
        return inputs
    key = lax.all_gather(inputs.key, problem.narrow_axis, axis=1, tiled=True)
    return inputs._replace(key=key)


@jax.named_scope("exchange")
def _of_own_tokens(problem: Problem, gradient: jax.Array) -> jax.Array:
    """The transpose of that: a token's gradients [B, S, 1, R], summed on the rank it belongs to."""
    if problem.narrow_axis is None:
        return gradient
    return lax.psum_scatter(gradient, problem.narrow_axis, scatter_dimension=1, tiled=True)


def _mean_over(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return lax.pmean(x, axes) if axes else x


def _sum_over(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return lax.psum(x, axes) if axes else x


def _flat(*axes: Any) -> tuple[str, ...]:
    """Mesh axes of some entries of a PartitionSpec: ("a", "b"), None, "c" -> ("a", "b", "c")."""
    lists = (entry if isinstance(entry, tuple) else (entry,) for entry in axes)
    return tuple(axis for entry in lists for axis in entry if axis is not None)


def _cut(task: Task, inputs: Inputs) -> tuple[Queries, Keys]:
    """One rank's shard in blocks."""
    plan, num_kv_heads = task.plan, inputs.query.shape[2] // task.rule.groups
    segments, positions = (_cut_tokens(x, plan) for x in (inputs.segments, inputs.positions))
    if segments.query is not None:
        # No key has segment -1: queries that are padding find nothing to attend to.
        segments = segments._replace(query=jnp.where(segments.query == 0, -1, segments.query))
    queries = Queries(
        query=cut_heads(inputs.query, plan.query, num_kv_heads),
        start=own_row(plan.query.start, task.axis),
        segments=segments.query,
        positions=positions.query,
        selecting=_cut_all(inputs.selecting, plan.query),
    )
    keys = Keys(
        key=cut_heads(inputs.key, plan.key, inputs.key.shape[2]),
        value=None
        if inputs.value is None
        else cut_heads(inputs.value, plan.key, inputs.value.shape[2]),
        segments=segments.key,
        positions=positions.key,
        index=_cut_all(inputs.index, plan.key),
    )
    return queries, keys


def _cut_all(tree: Any, blocks: Blocks) -> Any:
    return jax.tree.map(lambda x: cut_tokens(x, blocks), tree)


def _cut_tokens(tokens: Tokens | None, plan: Plan) -> Tokens:
    if tokens is None:
        return Tokens(None, None)
    return Tokens(cut_tokens(tokens.query, plan.query), cut_tokens(tokens.key, plan.key))
