"""What the TPU compiler makes of the init's programs. Collected where libtpu is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH, MLP, NUM_LAYERS, NUM_CHIPS = 1024, 2816, 6, 4

# Compiled in a process of its own, as libtpu settles into whichever process loads it.
SCRIPT = f"""
import json, re
from parallelism import Constant, Normal, ParamSpec, TruncatedNormal, make_mesh, plan_init
from parallelism.topology import topology_devices

def specs(matrix, stacked):
    def declare(shape, axes):
        if stacked:
            layers = range({NUM_LAYERS})
            return ParamSpec((len(layers), *shape), "float32", matrix, ("layers", *axes), layers)
        return [ParamSpec(shape, "float32", matrix, axes, n) for n in range({NUM_LAYERS})]
    return {{"up": declare(({WIDTH}, {MLP}), ("embed", "mlp")),
             "key": declare(({WIDTH}, 4, 64), ("embed", "kv_heads", "head_dim")),
             "down": declare(({MLP}, {WIDTH}), ("mlp", "embed"))}}

mesh = make_mesh({{"fsdp": 2, "tensor": 2}}, topology_devices("v5p:2x2x1"))
rows = {{}}
for stacked in (False, True):
    tree = (specs(TruncatedNormal(0.02), stacked), specs(Constant(0.0), stacked))
    programs = plan_init(tree, mesh).compile().compiled
    rows["stacked" if stacked else "unrolled"] = [
        {{"collectives": re.findall("all-gather|all-reduce|all-to-all|permute", p.as_text()),
          "temporary_bytes": p.memory_analysis().temp_size_in_bytes,
          "output_bytes": p.memory_analysis().output_size_in_bytes}} for p in programs]
print("RESULT", json.dumps(rows))
"""


@pytest.fixture(scope="module")
def rows():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("RESULT")[2])


LEAF_BYTES = 4 * WIDTH * MLP // NUM_CHIPS


def test_a_chip_draws_its_shard_alone_and_in_little_memory(rows):
    # stacked: three draws and three constants; else a draw, a filling and three shapes
    assert [len(rows[tree]) for tree in ("stacked", "unrolled")] == [3 + 3, 2 + 3]
    for program in [*rows["stacked"], *rows["unrolled"]]:
        assert program["collectives"] == []
        assert program["temporary_bytes"] <= 1.25 * LEAF_BYTES  # one draw; its bits are fused
        assert program["output_bytes"] <= 1.02 * NUM_LAYERS * LEAF_BYTES


def test_shared_programs_hold_one_parameter_on_a_chip(rows):
    key_bytes = 4 * WIDTH * 4 * 64 // NUM_CHIPS
    sizes = sorted(program["output_bytes"] for program in rows["unrolled"])
    assert sizes == pytest.approx([key_bytes, *[LEAF_BYTES] * 4], rel=0.01)
    assert all(program["temporary_bytes"] <= 0.2 * LEAF_BYTES for program in rows["unrolled"])
