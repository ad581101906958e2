"""How weights reach the layers over a mesh, and how their gradients go back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from model.placement import Placement
from parallelism import AttentionSetup, Layout, make_mesh
from parallelism.hlo import program_work

AXES = ("embed", "heads", None)
HEADS = 12


@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        # 18 rows are stored in sixths, and of those a device has a third of the heads at first.
        (18, {"all-to-all": 18 // 6 * HEADS * 4}),
        # 16 rows are stored in halves, whole on every context rank.
        (16, {"all-gather": 16 // 2 * HEADS * 4}),
    ],
)
def test_gradients_that_ranks_have_by_heads_take_the_short_way_home(rows, moved):
    mesh = make_mesh({"fsdp": 2, "context": 3}, jax.devices()[:6])
    setup = AttentionSetup(mesh=mesh, layout=Layout("zigzag", 3), strategy="ulysses")
    placement = Placement(setup)
    shape, split = (rows, HEADS, 1), P(None, "context")
    stored = placement.rules.sharding(mesh, AXES, shape)
    doubled = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=split, out_specs=split)

    def use(weight):
        whole = placement.weight(weight, AXES, jnp.float32)
        return doubled(placement.of_own_heads(whole, AXES))

    def gradient(by_heads):
        return jax.vjp(use, jnp.zeros(shape))[1](by_heads)[0]

    by_heads = jax.device_put(
        np.arange(rows * HEADS, dtype=np.float32).reshape(shape), NamedSharding(mesh, split)
    )
    compiled = jax.jit(gradient, out_shardings=stored).lower(by_heads).compile()
    assert program_work(compiled.as_text()).collective_bytes == moved
    np.testing.assert_array_equal(compiled(by_heads), 2 * np.asarray(by_heads))
