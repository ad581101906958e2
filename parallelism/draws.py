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
from parallelism.threefry import fold_in, fusible_key

PRNG = "threefry2x32"
KEY_DATA = jax.ShapeDtypeStruct((2,), np.uint32)  # a key, as jax.random.key_data gives it


def draw(kind: Kind, key_data: jax.Array) -> jax.Array:
    """One call of the kind's initializer, of `kind.draw_shape`. `key_data` uint32 [2]."""
    try:
        return _call(kind, fusible_key(key_data))
    except NotImplementedError:  # jax.random.poisson asks for JAX's own generator by name
        return draw_reference(kind, key_data)


def draw_reference(kind: Kind, key_data: jax.Array) -> jax.Array:
    """The same by JAX's own generator."""
    return _call(kind, jax.random.wrap_key_data(key_data, impl=PRNG))


def fill(kind: Kind) -> jax.Array:
    """A parameter whose initializer ignores its key."""
    return _call(kind, None)


def draw_in_turn(kind: Kind, keys: jax.Array) -> jax.Array:
    """n draws, one after the other, [n, *kind.draw_shape]; `keys` uint32 [n, 2].

    Temporaries are those of one draw.
    """
    return jax.lax.map(lambda key_data: draw(kind, key_data), keys)


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
    return fold_in(fold_in(np.broadcast_to(root, ids.shape), ids[:, 0]), ids[:, 1])


def _call(kind: Kind, key: jax.Array | None) -> jax.Array:
    """Refuses values of another shape or dtype than was asked for, before they spread."""
    values = jnp.asarray(kind.initializer(key, kind.draw_shape, kind.dtype))
    if values.shape != kind.draw_shape or values.dtype != kind.dtype:
        raise ValueError(
            f"the initializer of {kind.members[0].path!r} was asked for {kind.dtype}"
            f"{list(kind.draw_shape)} and gave {values.dtype}{list(values.shape)}"
        )
    return values
