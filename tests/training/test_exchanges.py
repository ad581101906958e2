"""The collectives that a plan expects, against those of the compiled step."""

from __future__ import annotations

from collections import Counter

import pytest

from parallelism.hlo import program_work
from tests.training.small import feed_of, small_setup
from training.compile import compile_train_step
from training.exchanges import expected_exchanges, uncounted_exchanges

EXPERTS = ("model.moe.num_experts=4", "model.moe.experts_per_token=2", "model.moe.expert_dim=16")
LATENT = (
    "model.latent.kv_rank=16",
    "model.latent.nope_dim=4",
    "model.latent.rope_dim=4",
    "model.latent.value_dim=8",
)
MESHES = {
    "all_gather": ("mesh.context=4", "mesh.fsdp=2"),
    "ring, a window": (
        "mesh.context=4",
        "mesh.fsdp=2",
        "context_parallel=ring",
        "model.window=16",
        "model.layer_pattern=local",
    ),
    "experts, ulysses": (
        "mesh.expert=2",
        "mesh.fsdp=2",
        "mesh.context=2",
        "context_parallel=ulysses",
        *EXPERTS,
    ),
    "latents, ulysses": (
        "mesh.context=4",
        "mesh.fsdp=2",
        "model.num_kv_heads=8",
        "context_parallel=ulysses",
        *LATENT,
    ),
    "adapter, ring, full remat": (
        "mesh.context=2",
        "mesh.fsdp=4",
        "context_parallel=ring",
        "adapter=lora",
        "adapter.rank=4",
        "model.remat=full",
    ),
}

# Where a layer is run again before it is run backward, both send the same shard at their first hop.
# The compiler joins the two for the values and their segments: [2 rows, 24 tokens] of a device.
JOINED = {"adapter, ring, full remat": 2 * 2 * 24 * (4 * 8 + 1) * 4}  # 4 heads of 8, 2 layers


@pytest.mark.parametrize("name", MESHES)
def test_expected_exchanges_are_those_of_the_compiled_step(name: str) -> None:
    setup = small_setup("model.num_layers=2", *MESHES[name], num_devices=8)
    expected: Counter[str] = Counter()
    for each in expected_exchanges(setup):
        expected[each.kind] += each.num_bytes
    text = compile_train_step(setup, feed_of(setup)).call.as_text()
    found = program_work(text, unknown_trips=1).collective_bytes
    for kind in ("all-to-all", "reduce-scatter"):
        assert found[kind] == expected[kind], kind
    sent = expected["collective-permute"]
    assert found["collective-permute"] in (sent, sent - JOINED.get(name, 0))
    assert found["all-gather"] == pytest.approx(expected["all-gather"], rel=0.01)
    # Compilers may sum over one axis after the other, and add some numbers for the metrics.
    summed = expected["reduce-scatter or all-reduce"] + expected["all-reduce"]
    assert summed <= found["all-reduce"] <= 2.1 * summed


def test_the_plan_says_that_it_leaves_out_what_muon_exchanges() -> None:
    words = {"fsdp=2": "muon", "data=2": "muon", "context=2": "adamw"}
    setups = [
        small_setup(f"optimizer={rule}", f"mesh.{mesh}", num_devices=2)
        for mesh, rule in words.items()
    ]
    assert [len([*uncounted_exchanges(setup)]) for setup in setups] == [1, 0, 0]
