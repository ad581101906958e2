"""What is refused, by name, and the documented table of what works."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from parallelism import Layout, make_mesh
from parallelism.attention import (
    AttentionMask,
    AttentionSetup,
    Request,
    attention,
    unsupported,
)
from parallelism.attention.pictures import chunk_pairs
from parallelism.attention.support import choose_kernel, support_table

ROOT = Path(__file__).parents[3]
ZIGZAG = Layout("zigzag", 4)


def four_ranks(**fields):
    return AttentionSetup(
        mesh=make_mesh({"context": 4}, jax.devices()[:4]), layout=ZIGZAG, **fields
    )


REFUSED = [
    ({"strategy": "ulysses"}, Request(num_heads=6), "model.num_heads(6) among mesh.context=4"),
    ({"kernel": "splash", "strategy": "ring"}, Request(), "not context_parallel.strategy=ring"),
    ({"kernel": "splash"}, Request(positions=True), "positions"),
    (
        {"kernel": "splash"},
        Request(seq_len=768),
        "data.seq_len(768) / mesh.context(4) = 192: data.seq_len=512 or 1024",
    ),
    ({"kernel": "cudnn"}, Request(segments=True), "segments"),
    ({"kernel": "cudnn"}, Request(positions=True), "positions"),
    ({"kernel": "cudnn"}, Request(soft_cap=2.0), "soft caps"),
    ({"kernel": "cudnn"}, Request(mask=AttentionMask(window=8)), "windows"),
    ({"kernel": "cudnn"}, Request(dtype="float32"), "float32"),
    ({"kernel": "cudnn"}, Request(head_dim=20), "head_dim=20: 16 or 24"),
]


@pytest.mark.parametrize(("fields", "request_", "message"), REFUSED)
def test_what_a_combination_cannot_do_is_refused_by_name(fields, request_, message):
    setup = four_ranks(**fields)
    reason = unsupported(setup, request_)
    assert reason is not None
    assert message in reason
    assert "would fit" in reason
    with pytest.raises(ValueError, match=r"attention\.kernel|context_parallel\.strategy"):
        choose_kernel(setup, request_)


def test_two_stripes_have_no_mask_in_cudnn():
    setup = replace(four_ranks(kernel="cudnn"), layout=Layout("striped", 4))
    assert "zigzag" in (unsupported(setup, Request()) or "")
    assert unsupported(setup, Request(mask=AttentionMask(causal=False))) is None


def test_the_portable_kernel_is_chosen_here_and_kernels_of_other_platforms_are_refused():
    assert choose_kernel(four_ranks(), Request(dtype="float32")) == "xla"
    for kernel, home in (("splash", "tpu"), ("cudnn", "gpu")):
        with pytest.raises(ValueError, match=f"{kernel} runs on {home}, the devices here are cpu"):
            choose_kernel(four_ranks(kernel=kernel), Request())


def test_names_that_do_not_exist_are_refused():
    for field in ("strategy", "kernel"):
        with pytest.raises(ValueError, match=f"{field}='flash'"):
            AttentionSetup(layout=ZIGZAG, **{field: "flash"})


SHAPES = {
    "heads": ((2, 8, 3, 4), (2, 8, 2, 4), "multiple"),
    "batch": ((2, 8, 2, 4), (3, 8, 2, 4), "differ"),
    "width": ((2, 8, 2, 4), (2, 8, 2, 5), "width"),
    "rank": ((2, 8, 2), (2, 8, 2), "takes"),
    "lengths": ((2, 8, 2, 4), (2, 16, 2, 4), "positions"),
    "too_short": ((2, 12, 2, 4), (2, 12, 2, 4), "multiple of 2\\*cp = 8"),
}


@pytest.mark.parametrize(("queries", "keys", "message"), SHAPES.values(), ids=SHAPES)
def test_shapes_that_do_not_fit_are_refused(queries, keys, message):
    query, key = jnp.zeros(queries), jnp.zeros(keys)
    with pytest.raises(ValueError, match=message):
        attention(query, key, key, mask=AttentionMask(), setup=four_ranks())


def test_a_layout_of_another_cp_than_the_mesh_is_refused():
    setup = replace(four_ranks(), layout=Layout("zigzag", 2))
    query = jnp.zeros((1, 8, 2, 4))
    with pytest.raises(ValueError, match="cp=2, the mesh context=4"):
        attention(query, query, query, mask=AttentionMask(), setup=setup)


def test_the_documented_table_is_the_one_the_code_decides_by():
    assert support_table() in (ROOT / "docs" / "context_parallelism.md").read_text()


def test_the_documented_picture_is_that_of_the_plan():
    picture = textwrap.indent(chunk_pairs(4), "    ")
    assert "pairs of a rank: 9, 9, 9, 9      pairs of a rank: 3, 7, 11, 15" in picture
    assert picture in (ROOT / "docs" / "context_parallelism.md").read_text()
