"""The elements that a device holds, told by numbers, are those of NumPy's slice of the whole."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from parallelism import make_mesh
from parallelism.shard_order import element_indices, shard_order

INDICES = jax.jit(element_indices, static_argnums=2)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((4, 6), (None, "fsdp")),
        ((24, 10), ("fsdp", "tensor")),
        ((4, 6, 10), ("context", "fsdp", "tensor")),
        ((4, 6, 10, 3, 2), ("context", None, "tensor", None, "fsdp")),
        ((4, 64), (("fsdp", "context"), "tensor")),
        ((1, 8), (None, "fsdp")),
        ((7,), ()),
        ((), ()),
        ((3, 140_002), (None, "fsdp")),  # runs longer than a piece, and of no round length
        ((70_000, 4), (None, "fsdp")),
    ],
)
def test_a_shard_holds_what_its_slice_of_the_whole_holds(shape, spec):
    mesh = make_mesh({"fsdp": 2, "context": 2, "tensor": 2})
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    order, whole = shard_order(shape, sharding), np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for piece in (61, 1 << 16):
        rows = order.rows(3, piece)
        for row, device in list(zip(rows, mesh.devices.flat, strict=True))[::3]:
            wanted = whole[sharding.devices_indices_map(shape)[device]].ravel()
            starts = np.arange(min(row[0], 7), dtype=np.uint32) * np.uint32(piece)
            found = np.concatenate([INDICES(row, start, piece) for start in starts])
            compared = min(len(found), len(wanted))
            assert row[0] == -(-len(wanted) // piece)
            assert found[:compared].tolist() == wanted[:compared].tolist()


def test_indices_beyond_two_to_the_31_are_exact():
    sharding = NamedSharding(make_mesh({"tensor": 8}), PartitionSpec(None, "tensor"))
    shape = (50_000, 80_000)  # 4e9 elements, in runs of 10,000
    order = shard_order(shape, sharding)
    assert order.num_elements == 500_000_000
    start = 49_999 * 10_000 - 5
    found = INDICES(order.rows(1, 1 << 16)[7], np.uint32(start), 10)
    last_rows = [49_998 * 80_000 + 79_995 + n for n in range(5)]
    assert found.tolist() == last_rows + [49_999 * 80_000 + 70_000 + n for n in range(5)]
