"""How values are drawn: each draw's key, and the function that every init program traces.

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
from parallelism.params import DrawId

PRNG = "threefry2x32"
KEY_DATA = jax.ShapeDtypeStruct((2,), np.uint32)  # a key, as jax.random.key_data gives it


def draw(kind: Kind, key_data: jax.Array) -> jax.Array:
    """One call of the kind's initializer, of `kind.draw_shape`. `key_data` uint32 [2]."""
    key = jax.random.wrap_key_data(key_data, impl=PRNG)
    return _checked(kind, kind.initializer(key, kind.draw_shape, kind.dtype))


def fill(kind: Kind) -> jax.Array:
    """A parameter whose initializer ignores its key."""
    return _checked(kind, kind.initializer(None, kind.draw_shape, kind.dtype))


def draw_in_turn(kind: Kind, keys: jax.Array, count: jax.Array) -> jax.Array:
    """The first `count` of n draws, one after the other, then zeros: [n, *kind.draw_shape].

    `keys` uint32 [n, 2], `count` int32 []. Temporaries are those of one draw. The branch keeps
    them small: XLA would move a draw's counters, twice its size, out of a bare loop and hold them.
    """

    def one(index: jax.Array) -> jax.Array:
        return jax.lax.cond(
            index < count,
            lambda: draw(kind, keys[index]),
            lambda: jnp.zeros(kind.draw_shape, kind.dtype),
        )

    return jax.lax.map(one, jnp.arange(keys.shape[0], dtype=np.int32))


def draw_at_once(kind: Kind, keys: jax.Array) -> jax.Array:
    """All n draws side by side, [n, *kind.draw_shape]; `keys` uint32 [n, 2].

    For a leading axis that is itself sharded: each device draws its own part of it.
    """
    return jax.vmap(lambda key_data: draw(kind, key_data))(keys)


def traced_keys(root: jax.Array, draw_ids: Sequence[DrawId]) -> jax.Array:
    """The keys of some draws, uint32 [n, 2]: the definition, to be traced. `root` uint32 [2]."""

    def fold(draw_id: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(root, impl=PRNG)
        key = jax.random.fold_in(jax.random.fold_in(key, draw_id[0]), draw_id[1])
        return jax.random.key_data(key)

    return jax.vmap(fold)(jnp.asarray(np.array(draw_ids, np.uint32)))


def host_keys(root: np.ndarray, draw_ids: Sequence[DrawId]) -> np.ndarray:
    """What `traced_keys` gives, on the host: no program then has to hold two more hashes."""
    ids = np.array(draw_ids, np.uint32)
    keys = np.broadcast_to(root, ids.shape)
    for number in ids.T:
        keys = _threefry2x32(keys, np.stack([np.zeros_like(number), number], axis=-1))
    return keys


def _threefry2x32(keys: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Threefry-2x32, 20 rounds, of uint32 [n, 2] (Salmon et al., SC 2011, section 3.3)."""
    first, second = keys[:, 0], keys[:, 1]
    schedule = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    left, right = blocks[:, 0] + first, blocks[:, 1] + second
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            left = left + right
            right = (right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation))
            right = right ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return np.stack([left, right], axis=-1)


def _checked(kind: Kind, values: jax.Array) -> jax.Array:
    """Refuses values of another shape or dtype than was asked for, before they spread."""
    values = jnp.asarray(values)
    if values.shape != kind.draw_shape or values.dtype != kind.dtype:
        raise ValueError(
            f"the initializer of {kind.members[0].path!r} was asked for {kind.dtype}"
            f"{list(kind.draw_shape)} and gave {values.dtype}{list(values.shape)}"
        )
    return values
