"""One attention on random arrays, computed by the code under test and by the oracle."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from parallelism import Layout, make_mesh
from parallelism.attention import AttentionMask, AttentionSetup, Index, attention
from tests.parallelism.attention import oracle


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes and features; `documents` are the lengths of the documents of each row."""

    strategy: str = "all_gather"
    layout: str = "zigzag"
    cp: int = 4
    fsdp: int = 1
    tensor: int = 1
    use_mesh: bool = True
    block_size: int = 5
    batch: int = 2
    seq_len: int = 48
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 4
    value_dim: int = 4
    causal: bool = True
    window: int | None = None
    top_k: int | None = None
    documents: tuple[tuple[int, ...], ...] | None = None
    sinks: bool = False
    scale: float | None = None
    soft_cap: float | None = None
    query_scale: float = 1.0
    dtype: str = "float32"
    with_positions: bool = False

    @property
    def mask(self) -> AttentionMask:
        return AttentionMask(causal=self.causal, window=self.window, top_k=self.top_k)

    @property
    def setup(self) -> AttentionSetup:
        sizes = {"fsdp": self.fsdp, "context": self.cp, "tensor": self.tensor}
        devices = jax.devices()[: self.fsdp * self.cp * self.tensor]
        return AttentionSetup(
            mesh=make_mesh(sizes, devices) if self.use_mesh else None,
            layout=Layout(self.layout, self.cp),
            strategy=self.strategy,
            block_size=self.block_size,
        )

    @property
    def segments(self) -> np.ndarray | None:
        """Document numbers from 1, padding 0: int32 [B, T]."""
        if self.documents is None:
            return None
        segments = np.zeros((self.batch, self.seq_len), np.int32)
        for row, lengths in zip(segments, self.documents, strict=True):
            ends = np.cumsum(lengths)
            for number, (length, end) in enumerate(zip(lengths, ends, strict=True), start=1):
                row[end - length : end] = number
        return segments

    def arrays(self) -> list[np.ndarray]:
        """Query, key, value and the gradient of the output, rounded to the dtype, as float32."""
        draw = np.random.default_rng(0).standard_normal
        rows = (self.batch, self.seq_len)
        query = self.query_scale * draw((*rows, self.num_heads, self.head_dim))
        key = draw((*rows, self.num_kv_heads, self.head_dim))
        value = draw((*rows, self.num_kv_heads, self.value_dim))
        gradient = draw((*rows, self.num_heads, self.value_dim))
        arrays = (query, key, value, gradient)
        return [np.asarray(jnp.asarray(x, self.dtype).astype(jnp.float32)) for x in arrays]

    def sink_scores(self) -> np.ndarray | None:
        """A score per head, float32 [N]."""
        draw = np.random.default_rng(1).standard_normal
        return draw(self.num_heads).astype(np.float32) if self.sinks else None

    def index(self) -> Index | None:
        """Queries of three index heads, their weights, and keys, if the mask chooses keys."""
        if self.top_k is None:
            return None
        draw = np.random.default_rng(2).standard_normal
        shapes = ((self.seq_len, 3, 6), (self.seq_len, 3), (self.seq_len, 6))
        return Index(*(draw((self.batch, *shape)).astype(np.float32) for shape in shapes))


def function_of(case: Case):
    """Attention of the case as a function of query, key, value and sinks, in its setup's order."""
    setup, segments, chosen_by = case.setup, case.segments, case.index()
    if chosen_by is not None:
        chosen_by = Index(*(jnp.asarray(setup.layout.fold(x)) for x in chosen_by))
    index = np.tile(np.arange(case.seq_len, dtype=np.int32), (case.batch, 1))
    folded_segments = None if segments is None else jnp.asarray(setup.layout.fold(segments))
    positions = jnp.asarray(setup.layout.fold(index)) if case.with_positions else None

    def function(query, key, value, sinks):
        return attention(
            query,
            key,
            value,
            mask=case.mask,
            setup=setup,
            segment_ids=folded_segments,
            positions=positions,
            sinks=sinks,
            scale=case.scale,
            soft_cap=case.soft_cap,
            index=chosen_by,
        )

    return function


def folded_inputs(case: Case):
    """Arguments of `function_of(case)` and the gradient of its output, in that order."""
    layout = Layout(case.layout, case.cp)
    *inputs, gradient = (jnp.asarray(layout.fold(x), case.dtype) for x in case.arrays())
    sinks = case.sink_scores()
    return (*inputs, None if sinks is None else jnp.asarray(sinks)), gradient


def computed(case: Case, compiler_options=None) -> dict[str, np.ndarray]:
    """Output and gradients by the code under test, in contiguous order."""

    @functools.partial(jax.jit, compiler_options=compiler_options)
    def run(inputs, gradient):
        out, pull_back = jax.vjp(function_of(case), *inputs)
        return out, *pull_back(gradient)

    layout = Layout(case.layout, case.cp)
    *arrays, sinks = run(*folded_inputs(case))
    assert all(x.dtype == case.dtype for x in arrays)
    arrays = [layout.unfold(np.asarray(x, np.float64)) for x in arrays]
    named = dict(zip(("out", "query", "key", "value"), arrays, strict=True))
    return named if sinks is None else {**named, "sinks": np.asarray(sinks)}


def expected(case: Case) -> dict[str, np.ndarray]:
    """The same by the oracle."""
    query, key, value, gradient = case.arrays()
    index = np.arange(case.seq_len)
    mask = oracle.allowed(index, index, case.causal, case.window, case.segments)
    if case.top_k is not None:
        mask = oracle.best(mask, *case.index(), case.top_k)
    out, gradients = oracle.attention(
        query, key, value, mask, sinks=case.sink_scores(), scale=case.scale, soft_cap=case.soft_cap
    )
    named = {"out": out, **gradients(gradient)._asdict()}
    return {name: x for name, x in named.items() if x is not None}


def errors(case: Case, compiler_options=None) -> dict[str, float]:
    """Largest difference over the largest value, of the output and of each gradient."""
    right, ours = expected(case), computed(case, compiler_options)
    assert right.keys() == ours.keys()
    assert all(np.isfinite(x).all() for x in ours.values())
    return {name: difference(ours[name], x) for name, x in right.items()}


def difference(x: np.ndarray, right: np.ndarray) -> float:
    """Relative to the largest right value; absolute where all of them are zero but for rounding."""
    largest = np.abs(right).max()
    return float(np.abs(x - right).max() / (largest if largest > 1e-9 else 1))
