"""The splash kernel on folded sequences, interpreted on the CPU, against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import Layout, attention
from parallelism.attention.blocks import AttentionMask
from parallelism.attention.folded_mask import FoldedMask, slot_index
from parallelism.attention.sharded import Inputs, Tokens
from parallelism.attention.splash import SplashProblem, attend_splash, block_size
from tests.parallelism.attention.case import Case, difference, expected, folded_inputs

SIZES = {"seq_len": 512, "batch": 1, "head_dim": 128, "value_dim": 128}
CASES = {
    "one_device": Case(cp=1, use_mesh=False, num_heads=2, num_kv_heads=1, **SIZES),
    "zigzag_packed_sinks_window_in_two_parts": Case(
        cp=2,
        num_heads=4,
        num_kv_heads=2,
        sinks=True,
        window=100,
        **{"documents": ((7, 100, 200, 150),), **SIZES},
    ),
    "striped_soft_cap_heads": Case(
        cp=2, tensor=2, layout="striped", soft_cap=2.0, num_heads=2, num_kv_heads=2, **SIZES
    ),
}


def problem_of(case):
    setup = case.setup
    return SplashProblem(
        mask=case.mask,
        layout=setup.layout,
        scale=case.head_dim**-0.5,
        soft_cap=case.soft_cap,
        mesh=setup.mesh,
        spec=setup.attending_spec(case.batch, case.num_heads),
        axis=setup.exchange_axis,
        narrow_axis=setup.narrow_axis,
        interpret=True,
        least_gathered=1,
    )


def computed(case):
    """Output and gradients by splash, in contiguous order."""
    problem, setup, segments = problem_of(case), case.setup, case.segments
    folded = None if segments is None else jnp.asarray(setup.layout.fold(segments))
    tokens = None if folded is None else Tokens(folded, folded)

    @jax.jit
    def run(inputs, gradient):
        def attend(query, key, value, sinks):
            return attend_splash(problem, Inputs(query, key, value, tokens, None, sinks))

        out, pull_back = jax.vjp(attend, *inputs)
        return out, *pull_back(gradient)

    *arrays, sinks = run(*folded_inputs(case))
    arrays = [setup.layout.unfold(np.asarray(x, np.float64)) for x in arrays]
    named = dict(zip(("out", "query", "key", "value"), arrays, strict=True))
    return named if sinks is None else {**named, "sinks": np.asarray(sinks)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_forward_and_gradients_equal_the_oracle(case):
    found, right = computed(case), expected(case)
    assert found.keys() == right.keys()
    assert all(difference(found[name], x) <= 1e-5 for name, x in right.items())


@pytest.mark.parametrize("strategy", ["all_gather", "ulysses"])
def test_latent_keys_are_expanded_where_they_were_gathered(strategy):
    case = Case(strategy=strategy, cp=2, num_heads=2, num_kv_heads=1, **SIZES)  # in two parts
    draw = np.random.default_rng(0).standard_normal
    query, narrow, weights = (
        jnp.asarray(draw(shape), jnp.float32)
        for shape in ((1, 512, 2, 128), (1, 512, 1, 16), (16, 2, 256))
    )

    def expand(narrow, weights):
        both = jnp.einsum("bskr,rnw->bsnw", narrow, weights)
        return both[..., :128], both[..., 128:]

    def by_splash(query, narrow, weights):
        problem = replace(problem_of(case), expand=expand)
        inputs = Inputs(query, narrow, None, weights=weights)
        return (attend_splash(problem, inputs) ** 2).sum()

    def by_tiles(query, narrow, weights):
        setup = replace(case.setup, strategy="all_gather", block_size=128)
        latent = {"expand": expand, "weights": weights}
        return (attention(query, narrow, None, mask=case.mask, setup=setup, **latent) ** 2).sum()

    found, right = (
        jax.jit(jax.grad(side, (0, 1, 2)))(query, narrow, weights) for side in (by_splash, by_tiles)
    )
    assert all(
        difference(np.asarray(x), np.asarray(y)) <= 1e-5 for x, y in zip(found, right, strict=True)
    )


@pytest.mark.parametrize("name", ["zigzag", "striped", "contiguous"])
@pytest.mark.parametrize("cp", [1, 2, 3, 8])
def test_the_formula_for_slots_is_the_permutation(name, cp):
    layout = Layout(name, cp)
    found = slot_index(layout, 48, np.arange(48, dtype=np.int32))
    assert found.tolist() == layout.permutation(48).tolist()


@pytest.mark.parametrize("name", ["zigzag", "striped"])
@pytest.mark.parametrize("mask", [AttentionMask(), AttentionMask(window=20)], ids=str)
def test_blocks_of_the_mask_are_those_of_every_token_pair(name, mask):
    layout = Layout(name, 3)
    folded = FoldedMask(mask, layout, 96)
    order = layout.permutation(96)
    distance = order[:, None] - order
    low, high = mask.reach
    whole = (distance >= low) & (distance <= high)
    for row in range(0, 96, 8):
        for column in range(0, 96, 16):
            block = (slice(row, row + 8), slice(column, column + 16))
            np.testing.assert_array_equal(np.broadcast_to(folded[block], (8, 16)), whole[block])


def test_as_many_parts_as_ranks_if_heads_divide_and_there_is_enough_of_them():
    case = Case(cp=4, tensor=2, num_heads=24, num_kv_heads=12, **SIZES)
    shape = (1, 512, 12, 128)  # six heads a rank, 512 * 128 float32 each
    inputs = Inputs(jnp.zeros((1, 512, 24, 128)), jnp.zeros(shape), jnp.zeros(shape))
    head, problem = 512 * 128 * 4, problem_of(case)
    parts = [replace(problem, least_gathered=n * head).parts(inputs) for n in (1, 2, 3, 7)]
    assert parts == [3, 3, 2, 1]
    assert replace(problem, axis=None).parts(inputs) == 1


def test_blocks_divide_chunks_if_they_can():
    assert block_size(16384, Layout("zigzag", 4)) == 512
    assert block_size(6144, Layout("zigzag", 4)) == 384  # chunks of 768
    assert block_size(512, Layout("zigzag", 4)) == 128  # chunks of 64: a block has two
    assert block_size(256, Layout("zigzag", 4)) == 0
