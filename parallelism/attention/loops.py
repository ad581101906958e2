"""Loops over blocks, as every rank runs them over its part of the plan. Shapes as in tiles.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parallelism.attention.stages import Stage, stack_stages
from parallelism.attention.tiles import KeyGradients, Keys, Rule, Run, Work

TreeT = TypeVar("TreeT")


def rank_work(stage: Stage, axis: str | None) -> Work:
    """This rank's part of a stage."""
    even = stage.even_count
    return Work(
        pairs=own_row(stage.pairs, axis),
        num_pairs=own_row(stage.count, axis) if even is None else even,
        visits=own_row(stage.visits, axis),
        num_visits=stage.visits.shape[-2],
        runs=Run(own_row(stage.key_start, axis), jnp.asarray(stage.key_length)),
    )


def each_stage(
    stages: Sequence[Stage],
    axis: str | None,
    step: Callable[[TreeT, Work, jax.Array], TreeT],
    carry: TreeT,
    numbers: np.ndarray | None = None,
) -> TreeT:
    """Run `step(carry, work, row of numbers)` for stages that differ in numbers alone, as a loop.

    `numbers` [stages, ...] are the stages' own beside the plan; by default their places.
    """
    rows = jnp.arange(len(stages)) if numbers is None else jnp.asarray(numbers)
    if len(stages) == 1:
        return step(carry, rank_work(stages[0], axis), rows[0])
    works = rank_work(stack_stages(stages), axis)

    def body(carry: TreeT, x: tuple[Work, jax.Array]) -> tuple[TreeT, None]:
        # Numbers that are known to the compiler do not pass through the loop.
        work, row = x
        work = work._replace(num_visits=works.num_visits)
        if isinstance(works.num_pairs, int):
            work = work._replace(num_pairs=works.num_pairs)
        return step(carry, work, row), None

    def each(number: jax.Array | int) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(number), len(stages))

    varying = works._replace(num_pairs=each(works.num_pairs), num_visits=each(works.num_visits))
    return lax.scan(body, carry, (varying, rows))[0]


def own_row(table: np.ndarray, axis: str | None) -> jax.Array:
    """The row of a table [C, ...] that belongs to this rank."""
    return jnp.asarray(table)[0 if axis is None else lax.axis_index(axis)]


def loop(
    first: jax.Array | int,
    last: jax.Array | int,
    body: Callable[[jax.Array, TreeT], TreeT],
    carry: TreeT,
) -> TreeT:
    """Run `body(number, carry)` from `first` to below `last`.

    Always a while loop: lax.scan would let JAX lift what does not change out of a loop over layers,
    and that is the masks of all pairs, S x S of them.
    """

    def step(state: tuple[jax.Array, TreeT]) -> tuple[jax.Array, TreeT]:
        number, carry = state
        return number + 1, body(number, carry)

    return lax.while_loop(lambda state: state[0] < last, step, (jnp.int32(first), carry))[1]


def block_of(tree: TreeT, number: jax.Array) -> TreeT:
    """One block of every array."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, number, keepdims=False), tree)


def with_block(tree: TreeT, new: TreeT, number: jax.Array) -> TreeT:
    """The arrays with one block of each replaced."""
    return jax.tree.map(lambda x, y: lax.dynamic_update_index_in_dim(x, y, number, 0), tree, new)


def added(tree: TreeT, new: TreeT, number: jax.Array) -> TreeT:
    """The arrays with something added to one block of each."""
    return with_block(tree, jax.tree.map(jnp.add, block_of(tree, number), new), number)


def no_gradients(rule: Rule, keys: Keys) -> KeyGradients:
    """Zeros for the gradients of some keys and values, and of their index if it is trained."""
    key, value = jax.tree.map(lambda x: x.swapaxes(-1, -2), (keys.key, keys.value))
    arrays = KeyGradients(key, value, keys.index if rule.trains_index else None)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), arrays)
