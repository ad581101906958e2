"""What families ask of attention, under every strategy: the numbers of transformers.

gemma2: windows, soft caps; gemma3: windows, five local layers to a global one, q/k norms; gpt_oss:
windows, sinks, yarn; mistral: windows everywhere; smollm3: layers without positions; deepseek:
latents, yarn; deepseek_v32: keys that an index chooses.
"""

from __future__ import annotations

import functools
import itertools

import jax
import numpy as np
import pytest

from model import with_parameters
from parallelism.hlo import program_work
from tests.model.reference_case import Case, compute, declared
from tests.model.test_references import OWN
from tests.quick_compile import QUICK_COMPILE
from training.feed import Feed

FAMILIES = ("gemma2", "gemma3_text", "gpt_oss", "mistral", "smollm3", "deepseek_v3", "deepseek_v32")
STRATEGIES = ("all_gather", "ring", "ulysses")
WITH_GRADIENTS = ("gemma3_text", "gpt_oss", "deepseek_v3")  # all_gather, in test_references.py
CASES = [
    (family, strategy)
    for family, strategy in itertools.product(FAMILIES, STRATEGIES)
    if (strategy != "all_gather" or family not in WITH_GRADIENTS)
    and (family, strategy) != ("deepseek_v32", "ulysses")  # refused
]
RANKS = {"context": 4}
SMALL_BLOCKS = "attention.block_size=2"  # chunks have three tokens, windows five


def forward(model, parameters, batch):
    filled = with_parameters(model, parameters)
    return filled(batch["tokens"], batch["positions"], batch["segment_ids"])


@functools.cache
def run(family, strategy):
    """Logits of the plain and of the packed rows in their order, and the compiled program."""
    case = Case(OWN / family)
    overrides = (f"context_parallel.strategy={strategy}", SMALL_BLOCKS)
    setup, parameters = declared(case, RANKS, *overrides)
    feed = Feed(setup.mesh, setup.rules, setup.layout)
    batches = [feed(batch) for batch in case.batches()]
    lowered = jax.jit(functools.partial(forward, setup.model)).lower(parameters, batches[0])
    program = lowered.compile(compiler_options=QUICK_COMPILE)
    logits = [setup.layout.unfold(np.asarray(program(parameters, batch))) for batch in batches]
    return logits, program.as_text()


@pytest.mark.parametrize(("family", "strategy"), CASES)
def test_logits_are_those_of_transformers_under_every_strategy(family, strategy):
    (plain, packed), _ = run(family, strategy)
    z = Case(OWN / family).numbers
    np.testing.assert_allclose(plain, z["logits"], atol=5e-5, rtol=0)
    real = z["packed_segment_ids"] > 0
    np.testing.assert_allclose(packed[real], z["logits_packed"][real], atol=5e-5, rtol=0)


@pytest.mark.parametrize(("family", "strategy"), [("gemma2", "ulysses"), ("gpt_oss", "ring")])
def test_gradients_are_those_of_transformers(family, strategy):
    case = Case(OWN / family)
    plain, _ = compute(case, RANKS, f"context_parallel.strategy={strategy}", SMALL_BLOCKS)
    gradients = {name[5:]: g for name, g in case.numbers.items() if name.startswith("grad/")}
    assert len(gradients) >= 3
    for name, expected in gradients.items():
        error = np.linalg.norm(plain.grads[name] - expected)
        assert error <= 1e-4 * np.linalg.norm(expected), name


def test_only_latents_travel_round_the_ring_and_no_expanded_keys():
    case = Case(OWN / "deepseek_v3")
    model, rows = case.model_config(), len(case.numbers["input_ids"])
    slots, hops = 2 * 4, RANKS["context"] - 1  # a rank's two chunks of three are padded to four
    narrow = model.latent.kv_rank + model.latent.rope_dim
    assert narrow < model.num_heads * model.head_dim / 2
    work = program_work(run("deepseek_v3", "ring")[1], unknown_trips=1)
    moved = work.collective_bytes["collective-permute"] / (4 * model.num_layers * hops)
    assert rows * slots * narrow <= moved <= rows * slots * (narrow + 1)  # and a segment id
