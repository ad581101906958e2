"""Latent attention: only the narrow keys travel, and every gradient is that of the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from parallelism import attention
from parallelism.hlo import program_work
from tests.parallelism.attention import oracle
from tests.parallelism.attention.case import Case, difference

RANK, SHARED, OWN, VALUE = 5, 2, 3, 4  # widths: latent, shared key, key and value of a head


def expand(narrow, weights):
    """A head's key is [own, shared] as in DeepSeek; works for NumPy and JAX."""
    xp = jnp if isinstance(narrow, jax.Array) else np
    up = xp.einsum("bsr,rnw->bsnw", narrow[:, :, 0, :RANK], weights)
    shared = xp.broadcast_to(narrow[:, :, :, RANK:], (*up.shape[:3], SHARED))
    return xp.concatenate([up[..., :OWN], shared], axis=-1), up[..., OWN:]


@dataclass
class Latent:
    """A case with a latent in place of keys and values."""

    case: Case
    arrays: tuple[np.ndarray, ...] = field(init=False)

    def __post_init__(self):
        draw = np.random.default_rng(3).standard_normal
        rows = (self.case.batch, self.case.seq_len)
        query = draw((*rows, self.case.num_heads, OWN + SHARED))
        narrow = draw((*rows, 1, RANK + SHARED))
        weights = draw((RANK, self.case.num_heads, OWN + VALUE))
        gradient = draw((*rows, self.case.num_heads, VALUE))
        self.arrays = tuple(x.astype(np.float32) for x in (query, narrow, weights, gradient))

    def function(self, query, narrow, weights):
        segments = self.case.segments
        return attention(
            query,
            narrow,
            None,
            mask=self.case.mask,
            setup=self.case.setup,
            segment_ids=None if segments is None else self.case.setup.layout.fold(segments),
            expand=expand,
            weights=weights,
        )

    def folded(self):
        query, narrow, weights, gradient = self.arrays
        query, narrow, gradient = map(self.case.setup.layout.fold, (query, narrow, gradient))
        return (query, narrow, weights), gradient

    def computed(self):
        @jax.jit
        def run(inputs, gradient):
            out, pull_back = jax.vjp(self.function, *inputs)
            return out, *pull_back(gradient)

        *by_token, weights = run(*self.folded())
        return [*(self.case.setup.layout.unfold(np.asarray(x)) for x in by_token), weights]

    def expected(self):
        query, narrow, weights, gradient = (x.astype(np.float64) for x in self.arrays)
        index = np.arange(self.case.seq_len)
        mask = oracle.allowed(index, index, segments=self.case.segments)
        out, gradients = oracle.attention(query, *expand(narrow, weights), mask)
        dq, dk, dv, _ = gradients(gradient)
        up = np.concatenate([dk[..., :OWN], dv], axis=-1)
        latent = np.einsum("bsnw,rnw->bsr", up, weights)
        shared = dk[..., OWN:].sum(2)
        by_weight = np.einsum("bsr,bsnw->rnw", narrow[:, :, 0, :RANK], up)
        return [out, dq, np.concatenate([latent, shared], -1)[:, :, None], by_weight]


CASES = {
    "one_device": Case(use_mesh=False, num_heads=4),
    "all_gather_packed": Case(num_heads=4, documents=((7, 1, 9, 20), (48,))),
    "ring": Case(strategy="ring", num_heads=4),
    "ring_over_heads_and_batch": Case(strategy="ring", cp=2, fsdp=2, tensor=2, num_heads=4),
    "batch_that_does_not_divide": Case(cp=2, fsdp=2, tensor=2, num_heads=4, batch=1),
    "ulysses_over_heads": Case(strategy="ulysses", cp=2, tensor=2, num_heads=4),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_forward_and_gradients_equal_the_oracle(case):
    latent = Latent(case)
    for found, right in zip(latent.computed(), latent.expected(), strict=True):
        assert difference(np.asarray(found, np.float64), right) <= 1e-5


@pytest.mark.parametrize("strategy", ["ring", "all_gather", "ulysses"])
def test_only_the_narrow_keys_travel(strategy):
    case = Case(strategy=strategy, seq_len=64, num_heads=8)
    latent = Latent(case)
    (query, narrow, weights), _ = latent.folded()
    sharding = NamedSharding(case.setup.mesh, P(None, "context"))
    inputs = (*(jax.device_put(x, sharding) for x in (query, narrow)), weights)
    work = program_work(jax.jit(latent.function).lower(*inputs).compile().as_text(), 1)
    shard = case.batch * case.seq_len // case.cp * (RANK + SHARED) * 4
    if strategy == "ring":
        assert work.collective_bytes == {"collective-permute": (case.cp - 1) * shard}
    elif strategy == "all_gather":
        assert work.collective_bytes == {"all-gather": case.cp * shard}
    else:
        tokens = case.batch * case.seq_len // case.cp * case.num_heads * 4
        exchanged = tokens * (OWN + SHARED) + tokens * VALUE  # queries and output
        assert work.collective_bytes == {
            "all-gather": case.cp * shard,
            "all-to-all": exchanged,
        }


def test_heads_that_ranks_cannot_share_and_missing_weights_are_refused():
    case = Case(cp=2, tensor=2, num_heads=4, use_mesh=True)
    query, narrow, weights, _ = Latent(case).arrays
    options = {"mask": case.mask, "setup": case.setup}
    with pytest.raises(ValueError, match="2 ranks do not divide 1 expanded heads"):
        attention(query, narrow, None, expand=expand, weights=weights[:, :1], **options)
    with pytest.raises(ValueError, match="value is None"):
        attention(query, narrow, None, **options)
    with pytest.raises(ValueError, match="weights have to be given"):
        attention(query, narrow, None, expand=expand, **options)
