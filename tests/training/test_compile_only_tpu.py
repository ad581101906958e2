"""mode=compile for TPU chips that are not here. Collected where libtpu is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = (
    "model.num_layers=2", "model.embed_dim=256", "model.mlp_dim=256", "model.num_heads=2",
    "model.num_kv_heads=2", "model.head_dim=128", "model.vocab_size=256", "data=synthetic",
    "data.batch=2", "data.seq_len=1024",
)  # fmt: skip


def compile_for(topology, *overrides):
    """A process of its own, as libtpu settles into whichever process loads it."""
    given = {word.split("=")[0] for word in overrides}
    own = [word for word in MODEL if word.split("=")[0] not in given]
    words = ["mode=compile", f"mesh.topology={topology}", *own, *overrides]
    return subprocess.run(
        [sys.executable, ROOT / "train.py", *words],
        env={**os.environ, "COLUMNS": "120"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def said():
    done = compile_for("v5p:2x2x1", "mesh.context=2")
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(said, name):
    return float(re.search(rf"^ *{re.escape(name)} +([\d,.e+]+)", said, re.M)[1].replace(",", ""))


def test_the_state_and_batch_are_counted_as_the_shapes_say(said):
    # embedding (tied), projections, feed-forward layers: over all four chips; norms on each
    matrices = 256 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 256)
    norms = (2 * 2 + 1) * 256
    assert number(said, "parameters of the model") == matrices + norms
    state = 3 * 4 * (matrices / 4 + norms)
    batch = 5 * 4 * 2 * 1024 / 4
    assert number(said, "arguments") == pytest.approx(state + batch, rel=0.02)


def test_it_fits_and_the_collectives_are_there(said):
    assert "data=1 fsdp=2 expert=1 context=2 tensor=1: 4 TPU v5 devices" in said
    assert re.search(r"memory: fits: 0\.\d of 95\.0 GiB a device, 0\.\d%", said)
    assert number(said, "all-gather") > 0
    assert 0.5 < number(said, "model FLOPs (causal), by our own count") / (6 * 1e6 * 2048 / 4) < 2


def test_what_the_compiler_gives_up_does_not_fit():
    # logits of 512 x 1024 / 4 tokens over 262,144 words in float32: 128 GiB of a chip's 16
    in_one = f"train.logits_bytes={1 << 40}"
    done = compile_for("v5e:2x2", "data.batch=512", "model.vocab_size=262144", in_one)
    assert done.returncode == 0, done.stderr
    said = re.search(r"memory: does not fit: .*\(([\d.]+)G\) exceeds available HBM", done.stdout)
    assert 128 < float(said[1]) < 140


def test_a_topology_that_libtpu_does_not_know_is_refused():
    done = compile_for("v5p:1x1x2")
    assert done.returncode == 2
    assert "mesh.topology=v5p:1x1x2" in done.stderr
    assert "Traceback" not in done.stderr
