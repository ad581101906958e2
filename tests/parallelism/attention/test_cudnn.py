"""cuDNN tiles without a GPU: merged by a stand-in that computes, and traced as they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from parallelism.attention import cudnn, dispatch
from tests.parallelism.attention.case import Case, errors, folded_inputs, function_of

MASK = cudnn.cudnn.MaskType
SIZES = {"seq_len": 32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "value_dim": 8}


def weights(query, key, scale, mask_type, lse=None):
    """Softmax weights [B, N, T, S] and their log-sum-exp, by definition."""
    scores = scale * jnp.einsum("bnth,bnsh->bnts", query, key)
    if mask_type == MASK.CAUSAL:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1) if lse is None else lse
    return jnp.exp(scores - lse[..., None]), lse


def stand_in_forward(query, key, value, *, scale, mask_type, qkv_layout, return_residual):
    assert (qkv_layout, return_residual) == ("BNTH", True)
    groups = query.shape[1] // key.shape[1]
    key, value = (jnp.repeat(x, groups, axis=1) for x in (key, value))
    weight, lse = weights(query, key, scale, mask_type)
    return jnp.einsum("bnts,bnsh->bnth", weight, value), lse


class StandInBackward:
    """FlashAttention-2's backward pass, which takes the log-sum-exp and the output as they come."""

    @staticmethod
    def bind(*operands, scale, mask_type, layout, **_):
        assert layout == cudnn.cudnn.AttentionLayout.BNTH.value
        (query, key, value), (lse, out, gradient) = operands[:3], operands[-3:]
        groups = query.shape[1] // key.shape[1]
        key_n, value_n = (jnp.repeat(x, groups, axis=1) for x in (key, value))
        weight, _ = weights(query, key_n, scale, mask_type, lse)
        by_weight = jnp.einsum("bnth,bnsh->bnts", gradient, value_n)
        by_score = weight * (by_weight - (out * gradient).sum(-1, keepdims=True))
        dq = scale * jnp.einsum("bnts,bnsh->bnth", by_score, key_n)
        dk = scale * jnp.einsum("bnts,bnth->bnsh", by_score, query)
        dv = jnp.einsum("bnts,bnth->bnsh", weight, gradient)
        split = (*key.shape[:2], groups, *key.shape[2:])
        return dq, dk.reshape(split).sum(2), dv.reshape(split).sum(2)


@pytest.fixture(autouse=True)
def choose_cudnn(monkeypatch):
    monkeypatch.setattr(dispatch, "choose_kernel", lambda setup, request: "cudnn")


CASES = [
    Case(strategy="all_gather", layout="zigzag", cp=4, sinks=True, **SIZES),
    Case(strategy="ring", layout="zigzag", cp=2, **SIZES),
    Case(strategy="ulysses", layout="contiguous", cp=2, **SIZES),
    Case(strategy="ring", layout="striped", cp=2, causal=False, **SIZES),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.strategy}-{c.layout}")
def test_tiles_merge_to_the_whole(case, monkeypatch):
    monkeypatch.setattr(cudnn.cudnn, "dot_product_attention", stand_in_forward)
    monkeypatch.setattr(cudnn.cudnn, "_dot_product_attention_bwd_p_wrapper", StandInBackward)
    assert max(errors(case).values()) <= 1e-5


@pytest.mark.parametrize("strategy", ["all_gather", "ring", "ulysses"])
def test_the_real_kernels_trace_with_the_shapes_of_the_inputs(strategy, monkeypatch):
    monkeypatch.setattr(cudnn.cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn.cudnn, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(cudnn.cudnn, "is_cuda_compute_capability_equal", lambda _: False)
    case = Case(strategy=strategy, cp=2, dtype="bfloat16", **SIZES)
    inputs, gradient = folded_inputs(case)

    def backward(inputs, gradient):
        return jax.vjp(function_of(case), *inputs)[1](gradient)

    jaxpr = jax.make_jaxpr(backward)(inputs, gradient)
    for found, given in zip(jaxpr.out_avals, inputs[:3], strict=True):
        assert (found.shape, found.dtype) == (given.shape, given.dtype)
    text = str(jaxpr)
    assert "dot_product_attention_fwd_wrapper" in text
    assert "dot_product_attention_bwd_wrapper" in text
