"""What the compiled step of a context-parallel run moves between devices."""

from __future__ import annotations

import math
import re

import jax
import pytest

from parallelism.hlo import program_work
from tests.training.small import feed_of, small_setup
from training.compile import compile_train_step
from training.setup import Setup


@pytest.fixture(scope="module")
def setup() -> Setup:
    return small_setup("mesh.context=4", "mesh.fsdp=2", num_devices=8)


@pytest.fixture(scope="module")
def text(setup: Setup) -> str:
    return compile_train_step(setup, feed_of(setup)).call.as_text()


def _results(text: str, operation: str) -> list[tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each result of an operation, tuples taken apart."""
    found = []
    for line in re.findall(rf"= (.*?) {operation}(?:-start)?\(", text):
        for dtype, dims in re.findall(r"([a-z]+\d+)\[([\d,]*)\]", line):
            found.append((dtype, tuple(map(int, dims.split(","))) if dims else ()))
    return found


def test_only_parameters_keys_values_and_segments_are_gathered(setup: Setup, text: str) -> None:
    config, rows = setup.config, setup.config.data.batch // 2
    kv = rows * config.data.seq_len * config.model.num_kv_heads * config.model.head_dim
    layers = config.model.num_layers
    parameters = {math.prod(s.shape) for s in jax.tree.leaves(setup.specs.parameters)}
    allowed = parameters | {size // layers for size in parameters} | {kv}
    gathered = _results(text, "all-gather")
    assert gathered
    for dtype, shape in gathered:
        size = math.prod(shape)
        assert size in allowed or (dtype == "s32" and size == rows * config.data.seq_len), shape


def test_nothing_is_looked_up_but_the_embedding(setup: Setup, text: str) -> None:
    table = f"{setup.config.model.vocab_size},{setup.config.model.embed_dim}"
    lookups = re.findall(r"[^-]gather\((.*?)\), offset_dims", text)
    operands = [re.search(r"\[([\d,]*)\]", lookup) for lookup in lookups]
    shapes = re.findall(r"%([\w.-]+) = \w+\[([\d,]*)\]", text)
    known = dict(shapes)
    for lookup, operand in zip(lookups, operands, strict=True):
        name = lookup.split(",")[0].strip().lstrip("%").split("%")[-1]
        assert (operand.group(1) if operand else known[name]) == table


def test_tokens_are_not_reordered_on_the_devices(text: str) -> None:
    assert "collective-permute" not in text
    assert "all-to-all" not in text


def test_gradients_are_summed_once_over_all_axes_together(setup: Setup, text: str) -> None:
    parameters = sum(4 * math.prod(s.shape) for s in jax.tree.leaves(setup.specs.parameters))
    summed = program_work(text, unknown_trips=1).collective_bytes["all-reduce"]
    assert summed < 1.2 * parameters  # those of vectors and the table once an axis
