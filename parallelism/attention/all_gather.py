"""Context parallelism by gathering: every rank takes the keys and values it needs, then computes.

Keys and values come from all ranks in one all-gather each and stay in the order in which they lie,
shard behind shard: the plan knows which tokens those are. Where a sliding window reaches only a
few blocks of some ranks, just these come, by collective-permute (a halo). Nothing gathered is kept
for the backward pass; it gathers again and sums the gradients of keys and values where the keys
came from, in float32.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from jax import lax

from parallelism.attention.blockwise import attend, attend_backward
from parallelism.attention.loops import rank_work
from parallelism.attention.plan import Plan
from parallelism.attention.stages import Fetch
from parallelism.attention.tiles import (
    KeyGradients,
    Keys,
    OwnGradients,
    Queries,
    Saved,
    Softmax,
    Task,
)

TreeT = TypeVar("TreeT")


def forward(
    task: Task, softmax: Softmax, queries: Queries, keys: Keys, weights: Any = None
) -> Softmax:
    """Add all keys that this rank's queries attend to."""
    work = rank_work(task.plan.stages[0], task.axis)
    collected = _collect(keys, task.plan, task.axis)
    return attend(task.rule, softmax, queries, collected, work, weights=weights)


def backward(
    task: Task, own: OwnGradients, saved: Saved, keys: Keys, weights: Any = None
) -> tuple[OwnGradients, KeyGradients]:
    """Add this rank's own gradients; and give those of its keys, from all ranks' queries."""
    work = rank_work(task.plan.stages[0], task.axis)
    collected = _collect(keys, task.plan, task.axis)
    own, gradients = attend_backward(task.rule, own, saved, collected, work, weights=weights)
    return own, _give_back(gradients, task.plan, task.axis)


@jax.named_scope("exchange")
def _collect(keys: Keys, plan: Plan, axis: str | None) -> Keys:
    """The blocks of keys that the stage of the plan speaks of, in its order."""
    if axis is None:
        return keys
    if plan.fetches is None:
        return jax.tree.map(lambda x: lax.all_gather(x, axis, tiled=True), keys)
    parts = [keys, *(_fetch(keys, fetch, axis) for fetch in plan.fetches)]
    return jax.tree.map(lambda *x: lax.concatenate(x, 0), *parts)


@jax.named_scope("exchange")
def _give_back(gradients: KeyGradients, plan: Plan, axis: str | None) -> KeyGradients:
    """The transpose of `_collect`: each block's gradients, summed on the rank it belongs to."""
    if axis is None:
        return gradients
    if plan.fetches is None:
        return jax.tree.map(lambda x: lax.psum_scatter(x, axis, tiled=True), gradients)
    num_own = len(plan.key.length)
    own, first = jax.tree.map(lambda x: x[:num_own], gradients), num_own
    for fetch in plan.fetches:
        last = first + sum(end - start for start, end in fetch.blocks)
        fetched = jax.tree.map(lambda x, run=(first, last): x[slice(*run)], gradients)
        own, first = _return(own, fetched, fetch, axis), last
    return own


def _fetch(keys: Keys, fetch: Fetch, axis: str) -> Keys:
    """Some blocks of the rank `fetch` points at; zeros where it has none for this rank."""

    def send(x: jax.Array) -> jax.Array:
        blocks = lax.concatenate([x[first:last] for first, last in fetch.blocks], 0)
        return lax.ppermute(blocks, axis, fetch.routes)

    return jax.tree.map(send, keys)


def _return(own: TreeT, fetched: TreeT, fetch: Fetch, axis: str) -> TreeT:
    """Adds the gradients of fetched blocks on the rank that they were fetched from."""
    back = [(destination, source) for source, destination in fetch.routes]

    def add(x: jax.Array, blocks: jax.Array) -> jax.Array:
        returned, offset = lax.ppermute(blocks, axis, back), 0
        for first, last in fetch.blocks:
            x = x.at[first:last].add(returned[offset : offset + last - first])
            offset += last - first
        return x

    return jax.tree.map(add, own, fetched)
