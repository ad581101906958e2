"""What the TPU compiler makes of reorder_sequence. Collected where libtpu is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARRAY_BYTES = 2 * 131072 * 8 * 128

# Bytes accessed per chip by two ppermutes in a shard_map, as first measured for v5p.
SHARDED_BYTES = {
    (4, "to zigzag"): 671e6,
    (16, "to zigzag"): 168e6,
    (128, "to zigzag"): 21e6,
    (4, "to contiguous"): 537e6,
    (16, "to contiguous"): 134e6,
    (128, "to contiguous"): 17e6,
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Compiled in a process of its own, as libtpu settles into whichever process loads it."""
    out = tmp_path_factory.mktemp("tpu") / "reorder.json"
    script = [sys.executable, ROOT / "benchmarks" / "reorder.py", "--only", "tpu"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*script, "--form", "foldtext", "--json", out],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["tpu"]
    return {(row["placement"], row["cp"], row["direction"]): row for row in rows}


@pytest.mark.parametrize(("cp", "direction"), list(SHARDED_BYTES))
def test_sharded_it_exchanges_half_shards_and_no_more(rows, cp, direction):
    row = rows["sharded", cp, direction]
    assert row["operations"] == {"collective-permute": 2}
    assert row["bytes_accessed"] <= 1.05 * SHARDED_BYTES[cp, direction]


@pytest.mark.parametrize(("cp", "direction"), list(SHARDED_BYTES))
def test_on_one_device_it_reads_once_and_writes_once(rows, cp, direction):
    row = rows["one device", cp, direction]
    assert row["operations"] == {}
    assert row["temporary_bytes"] == 0
    assert row["bytes_accessed"] <= 2.05 * ARRAY_BYTES
