"""What the TPU compiler makes of folded attention. Collected where libtpu is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parallelism.hlo import program_work

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from parallelism import AttentionMask, AttentionSetup, Layout, attention, make_mesh
from parallelism.topology import topology_devices

mesh = make_mesh({"context": 4}, topology_devices("v5p:2x2x1"))

def text(strategy):
    setup = AttentionSetup(
        mesh=mesh, layout=Layout("zigzag", 4), strategy=strategy, block_size=512)
    def loss(query, key, value, segments):
        out = attention(
            query, key, value, mask=AttentionMask(), setup=setup, segment_ids=segments)
        return out.astype(jnp.float32).sum()
    def array(dtype, *shape):
        sharding = NamedSharding(mesh, P(None, "context"))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    arrays = [array(jnp.bfloat16, 1, 16384, heads, 128) for heads in (8, 4, 4)]
    function = jax.jit(jax.grad(loss, (0, 1, 2)))
    lowered = function.lower(*arrays, array(jnp.int32, 1, 16384))
    return lowered.compile().as_text()

print(json.dumps({name: text(name) for name in ("all_gather", "ring")}))
"""


@pytest.fixture(scope="module")
def texts():
    """Compiled in a process of its own, as libtpu settles into whichever process loads it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_splash_computes_on_keys_as_they_lie_and_gathers_again_backward(texts):
    text = texts["all_gather"]
    assert text.count('custom_call_target="tpu_custom_call"') == 3  # forward, dq, dkv
    work = program_work(text, unknown_trips=1)
    # Keys, values and segment ids, forward and backward; then a sum of gradients, which XLA for
    # TPU writes as the all-reduce of a fused reduce-scatter. Nothing restores an order.
    assert work.collectives == {"all-gather": 6, "all-reduce": 1}
    assert not re.search(r" gather\(", text)
    # Of the four heads, two at a time: a loop forward and one backward.
    assert len(re.findall(r" while\(", text)) == 2
    keys_of_two_heads = 16384 * 2 * 128 * 2
    assert work.collective_bytes["all-gather"] <= 4 * keys_of_two_heads + 2**20


def test_a_ring_computes_while_the_next_keys_are_on_their_way(texts):
    loops = [
        re.findall(r" (collective-permute-start|collective-permute-done|while)\(", body)
        for body in texts["ring"].split("\n}\n")
        if "collective-permute-start(" in body
    ]
    assert len(loops) == 3  # the hops forward, the hops backward, and the entry
    for operations in loops:
        starts, computes = (operations.index(x) for x in ("collective-permute-start", "while"))
        assert starts < computes < operations.index("collective-permute-done")
