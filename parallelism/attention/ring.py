"""Context parallelism by a ring: keys and values go round, and queries stay.

At each hop a rank computes with the shard it holds while the next one is on its way, so that it
never holds more than two shards of keys and values, and each is sent once around and no further.
Hops at which no rank has anything to compute are skipped: with a sliding window, shards jump over
them. Backward, keys and values go round again; their float32 gradients follow one hop behind.

Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", 2023 (arXiv:2310.01889).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from parallelism.attention.blockwise import attend, attend_backward
from parallelism.attention.loops import each_stage
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


class Turn(NamedTuple):
    """What stages have in common that one loop can run: shifts of the ring, and a size."""

    arrived: int | None  # ranks that the keys moved since the stage before; None at the first
    leave: int | None  # ranks that they move to the stage after; None at the last
    num_pairs: int | None  # where it is the same on all ranks


def forward(
    task: Task, softmax: Softmax, queries: Queries, keys: Keys, weights: Any = None
) -> Softmax:
    """Add all keys that this rank's queries attend to."""

    def step(turn: Turn, carry: tuple[Softmax, Keys], work: Work) -> tuple[Softmax, Keys]:
        softmax, keys = carry
        coming = _send(keys, turn.leave, task)
        return attend(task.rule, softmax, queries, keys, work, weights=weights), coming

    return _walk(task, step, (softmax, keys))[0]


def backward(
    task: Task, own: OwnGradients, saved: Saved, keys: Keys, weights: Any = None
) -> tuple[OwnGradients, KeyGradients]:
    """Add this rank's own gradients; and give those of its keys, from all ranks' queries."""
    Carry = tuple[OwnGradients, Keys, KeyGradients | None]

    def step(turn: Turn, carry: Carry, work: Work) -> Carry:
        own, keys, before = carry
        coming = _send(keys, turn.leave, task)
        gradients = _send(before, turn.arrived, task)
        own, new = attend_backward(task.rule, own, saved, keys, work, weights=weights)
        if gradients is not None:
            new = jax.tree.map(jnp.add, gradients, new)
        return own, coming, new

    start: Carry = (own, keys, None)
    own, _, gradients = _walk(task, step, start)
    assert gradients is not None
    return own, _send(gradients, -task.plan.stages[-1].hop, task)


def _walk(task: Task, step: Callable[[Turn, TreeT, Work], TreeT], carry: TreeT) -> TreeT:
    """Run `step` for every stage of the plan; like turns in a row are one loop."""
    stages = task.plan.stages
    shifts = [after.hop - before.hop for before, after in itertools.pairwise(stages)]
    turns = [
        Turn(arrived, leave, stage.even_count)
        for arrived, leave, stage in zip([None, *shifts], [*shifts, None], stages, strict=True)
    ]
    for turn, group in itertools.groupby(zip(turns, stages, strict=True), key=lambda pair: pair[0]):
        like = [stage for _, stage in group]

        def run(carry: TreeT, work: Work, _: jax.Array, turn: Turn = turn) -> TreeT:
            return step(turn, carry, work)

        carry = each_stage(like, task.axis, run, carry)
    return carry


@jax.named_scope("exchange")
def _send(tree: TreeT, shift: int | None, task: Task) -> TreeT:
    """Hand blocks to the rank `shift` further on, and take those of the rank as far behind."""
    if not shift or task.axis is None:
        return tree
    size = len(task.plan.key.start)
    routes = [(rank, (rank + shift) % size) for rank in range(size)]
    return jax.tree.map(lambda x: lax.ppermute(x, task.axis, routes), tree)
