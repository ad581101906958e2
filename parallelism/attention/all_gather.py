"""Context parallelism by gathering: every rank takes the keys and values it needs, then computes.

Keys and values are gathered a portion at a time, as much as a rank holds itself: a run of blocks
of every chunk, of all ranks. They stay in the order in which they lie, share behind share: the
plan knows which tokens those are. Where a sliding window reaches only a few blocks of some ranks,
just these come, by collective-permute (a halo). Nothing gathered is kept for the backward pass; it
gathers again and sums the gradients of keys and values where the keys came from, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax

from parallelism.attention.blockwise import attend, attend_backward
from parallelism.attention.loops import each_stage, no_gradients
from parallelism.attention.plan import Plan
from parallelism.attention.stages import Fetch, portion_starts
from parallelism.attention.tiles import (
    KeyGradients,
    Keys,
    OwnGradients,
    Queries,
    Saved,
    Softmax,
    Task,
    Work,
)

TreeT = TypeVar("TreeT")


def forward(
    task: Task, softmax: Softmax, queries: Queries, keys: Keys, weights: Any = None
) -> Softmax:
    """Add all keys that this rank's queries attend to."""

    def step(softmax: Softmax, work: Work, starts: jax.Array) -> Softmax:
        collected = _collect(keys, starts, task)
        return attend(task.rule, softmax, queries, collected, work, weights=weights)

    return _each_portion(task, step, softmax)


def backward(
    task: Task, own: OwnGradients, saved: Saved, keys: Keys, weights: Any = None
) -> tuple[OwnGradients, KeyGradients]:
    """Add this rank's own gradients; and give those of its keys, from all ranks' queries."""
    Carry = tuple[OwnGradients, KeyGradients]

    def step(carry: Carry, work: Work, starts: jax.Array) -> Carry:
        own, before = carry
        collected = _collect(keys, starts, task)
        own, new = attend_backward(task.rule, own, saved, collected, work, weights=weights)
        return own, _give_back(before, new, starts, task)

    return _each_portion(task, step, (own, no_gradients(task.rule, keys)))


def _each_portion(
    task: Task, step: Callable[[TreeT, Work, jax.Array], TreeT], carry: TreeT
) -> TreeT:
    """Run `step(carry, work, where the portion's runs of own blocks begin)` for each portion."""
    return each_stage(task.plan.stages, task.axis, step, carry, portion_starts(task.plan.key))


@jax.named_scope("exchange")
def _collect(keys: Keys, starts: jax.Array, task: Task) -> Keys:
    """The blocks of keys that a stage of the plan speaks of, in its order."""
    plan, axis = task.plan, task.axis
    if axis is None:
        return keys
    if plan.fetches is None:
        portion = _portion(keys, starts, plan)
        return jax.tree.map(lambda x: lax.all_gather(x, axis, tiled=True), portion)
    parts = [keys, *(_fetch(keys, fetch, axis) for fetch in plan.fetches)]
    return jax.tree.map(lambda *x: lax.concatenate(x, 0), *parts)


@jax.named_scope("exchange")
def _give_back(
    own: KeyGradients, gradients: KeyGradients, starts: jax.Array, task: Task
) -> KeyGradients:
    """The transpose of `_collect`: each block's gradients, summed on the rank it belongs to."""
    plan, axis = task.plan, task.axis
    if axis is None:
        return gradients
    if plan.fetches is None:
        summed = jax.tree.map(lambda x: lax.psum_scatter(x, axis, tiled=True), gradients)
        return _with_portion(own, summed, starts, plan)
    num_own = len(plan.key.length)
    own, first = jax.tree.map(lambda x: x[:num_own], gradients), num_own
    for fetch in plan.fetches:
        last = first + sum(end - start for start, end in fetch.blocks)
        fetched = jax.tree.map(lambda x, run=(first, last): x[slice(*run)], gradients)
        own, first = _return(own, fetched, fetch, axis), last
    return own


def _portion(keys: Keys, starts: jax.Array, plan: Plan) -> Keys:
    """A run of blocks from each start; all of them if they are one portion."""
    if len(plan.stages) == 1:
        return keys
    size = _run_length(plan)

    def take(x: jax.Array) -> jax.Array:
        runs = (lax.dynamic_slice_in_dim(x, start, size) for start in starts)
        return lax.concatenate([*runs], 0)

    return jax.tree.map(take, keys)


def _with_portion(
    own: KeyGradients, portion: KeyGradients, starts: jax.Array, plan: Plan
) -> KeyGradients:
    """The blocks of a portion put where `_portion` took them from."""
    if len(plan.stages) == 1:
        return portion
    size = _run_length(plan)

    def put(x: jax.Array, runs: jax.Array) -> jax.Array:
        for number, start in enumerate(starts):
            run = runs[number * size : (number + 1) * size]
            x = lax.dynamic_update_slice_in_dim(x, run, start, 0)
        return x

    return jax.tree.map(put, own, portion)


def _run_length(plan: Plan) -> int:
    return len(plan.key.length) // portion_starts(plan.key).size


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
