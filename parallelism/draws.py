"""How values are drawn: the one function that every init program traces.

A draw's key comes from the root key and the draw's own two numbers, and the initializer always
sees the shape of one draw. Threefry computes each element's bits from the key and the element's
index alone, so that every device draws its own shard, and neither the mesh nor the company in which
a parameter is drawn changes a bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from parallelism.kinds import Kind

PRNG = "threefry2x32"
KEY_DATA = jax.ShapeDtypeStruct((2,), np.uint32)  # a root key, as jax.random.key_data gives it


def draw(kind: Kind, root: jax.Array, draw_id: jax.Array) -> jax.Array:
    """One call of the kind's initializer, of `kind.draw_shape`. `root`, `draw_id`: uint32 [2]."""
    key = jax.random.wrap_key_data(root, impl=PRNG)
    key = jax.random.fold_in(jax.random.fold_in(key, draw_id[0]), draw_id[1])
    return _checked(kind, kind.initializer(key, kind.draw_shape, kind.dtype))


def fill(kind: Kind) -> jax.Array:
    """A parameter whose initializer ignores its key."""
    return _checked(kind, kind.initializer(None, kind.draw_shape, kind.dtype))


def draw_in_turn(kind: Kind, root: jax.Array, draw_ids: jax.Array, count: jax.Array) -> jax.Array:
    """The first `count` of n draws, one after the other, and zeros: [n, *kind.draw_shape].

    `draw_ids` uint32 [n, 2], `count` int32 []. Temporaries are those of one draw. The branch keeps
    them small: XLA would move a draw's counters, twice its size, out of a bare loop and hold them.
    """

    def one(index: jax.Array) -> jax.Array:
        return jax.lax.cond(
            index < count,
            lambda: draw(kind, root, draw_ids[index]),
            lambda: jnp.zeros(kind.draw_shape, kind.dtype),
        )

    return jax.lax.map(one, jnp.arange(draw_ids.shape[0], dtype=np.int32))


def draw_at_once(kind: Kind, root: jax.Array, draw_ids: jax.Array) -> jax.Array:
    """All n draws side by side, [n, *kind.draw_shape]; `draw_ids` uint32 [n, 2].

    For a leading axis that is itself sharded: each device draws its own part of it.
    """
    return jax.vmap(lambda draw_id: draw(kind, root, draw_id))(draw_ids)


def id_array(draw_ids: Sequence[tuple[int, int]]) -> np.ndarray:
    """Draw ids as uint32 [n, 2]."""
    return np.array(draw_ids, np.uint32).reshape(-1, 2)


def _checked(kind: Kind, values: jax.Array) -> jax.Array:
    """Refuses values of another shape or dtype than was asked for, before they spread."""
    values = jnp.asarray(values)
    if values.shape != kind.draw_shape or values.dtype != kind.dtype:
        raise ValueError(
            f"the initializer of {kind.members[0].path!r} was asked for {kind.dtype}"
            f"{list(kind.draw_shape)} and gave {values.dtype}{list(values.shape)}"
        )
    return values
