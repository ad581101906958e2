"""reorder_sequence on whole arrays, bit for bit against an oracle written with take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from parallelism import reorder_sequence
from parallelism.layout import _concatenate_pieces

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 16, 128]
SHAPES = [((None,), 0), ((None,), -1), ((2, None, 3, 2), 1), ((None, 2, 2, 3), 0)]
SHAPES += [((2, 3, 2, None), -1), ((2, 2, None, 3), -2), ((2, None, 3, 2), -3)]


def order(layout, seq_len, cp):
    if layout == "contiguous":
        return np.arange(seq_len)
    if layout == "striped":
        return np.concatenate([np.arange(rank, seq_len, cp) for rank in range(cp)])
    if cp == 1:
        return np.arange(seq_len)
    chunks = np.arange(seq_len).reshape(2 * cp, -1)
    return np.concatenate([chunks[c] for r in range(cp) for c in (r, 2 * cp - 1 - r)])


def sample(shape, seq_len, dtype=np.float32):
    full = [seq_len if size is None else size for size in shape]
    return np.random.default_rng(seq_len).normal(size=full).astype(dtype)


@pytest.mark.parametrize("layout", ["zigzag", "striped", "contiguous"])
@pytest.mark.parametrize("cp", SIZES)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_numpy_equals_take(layout, cp, shape, dim):
    x = sample(shape, 2 * cp * 3)
    folded = np.take(x, order(layout, 2 * cp * 3, cp), axis=dim)
    out = reorder_sequence(x, cp, dim, layout=layout)
    assert type(out) is np.ndarray
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, folded)
    back = reorder_sequence(folded, cp, dim, to_contiguous=True, layout=layout)
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("cp", SIZES)
def test_jax_equals_take_eager_and_jitted(layout, cp):
    for (shape, dim), seq_len in zip(SHAPES[1:3], (2 * cp, 2 * cp * 3), strict=True):
        x = sample(shape, seq_len)
        folded = np.take(x, order(layout, seq_len, cp), axis=dim)
        out = reorder_sequence(jnp.asarray(x), cp, dim, layout=layout)
        assert isinstance(out, jax.Array)
        np.testing.assert_array_equal(out, folded)
        back = jax.jit(lambda y, d=dim: reorder_sequence(y, cp, d, True, layout))
        np.testing.assert_array_equal(back(folded), x)


def test_the_form_for_tpu_equals_take_too():
    for cp in (2, 3, 8, 16):
        x = np.arange(2 * cp * 3).reshape(1, -1)
        folded = x[:, order("zigzag", x.size, cp)]
        np.testing.assert_array_equal(_concatenate_pieces(jnp.asarray(x), 1, cp, False), folded)
        np.testing.assert_array_equal(_concatenate_pieces(jnp.asarray(folded), 1, cp, True), x)


@pytest.mark.parametrize("dtype", ["int32", "bool", "bfloat16", "uint8", "complex64"])
def test_every_dtype_is_kept(dtype):
    x = jnp.asarray(np.arange(48).reshape(2, 24) % 5).astype(dtype)
    for layout in ("zigzag", "striped"):
        out = reorder_sequence(x, 4, layout=layout)
        assert out.dtype == x.dtype
        expected = np.take(np.asarray(x), order(layout, 24, 4), axis=1)
        np.testing.assert_array_equal(np.asarray(out), expected)


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("to_contiguous", [False, True])
def test_the_gradient_is_the_inverse_permutation(layout, to_contiguous):
    perm = order(layout, 24, 4)
    perm = np.argsort(perm) if to_contiguous else perm
    x, cotangent = sample((2, None, 3), 24), sample((2, None, 3), 24) + 1

    def move(y):
        return reorder_sequence(y, 4, to_contiguous=to_contiguous, layout=layout)

    out, pull = jax.vjp(move, x)
    np.testing.assert_array_equal(out, x[:, perm])
    np.testing.assert_array_equal(pull(cotangent)[0], cotangent[:, np.argsort(perm)])
    np.testing.assert_array_equal(jax.jvp(move, (x,), (cotangent,))[1], cotangent[:, perm])
    check_grads(lambda y: jnp.sin(move(y)), (x,), order=2, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize("to_contiguous", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_program_cuts_and_concatenates_once(platform, to_contiguous, gradient):
    """Lowered for each platform, none of which has to be there."""

    def move(x):
        return reorder_sequence(x, 8, to_contiguous=to_contiguous)

    program = jax.jit(lambda x: jax.vjp(move, x)[1](x)[0] if gradient else move(x))
    traced = program.trace(jax.ShapeDtypeStruct((1, 64, 2), jnp.float32))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    pieces, reversals = (15, 0) if platform == "tpu" else (2, 1)
    assert text.count("stablehlo.concatenate") == 1
    assert text.count("stablehlo.slice") == pieces
    assert text.count("stablehlo.reverse") == reversals
    for name in ("gather", "while", "pad", "add", "dynamic", "reduce", "select", "transpose"):
        assert f"stablehlo.{name}" not in text


@pytest.mark.parametrize("to_contiguous", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_compiled_it_reads_once_and_writes_once(to_contiguous, gradient):
    def move(x):
        return reorder_sequence(x, 8, to_contiguous=to_contiguous)

    program = jax.jit(lambda x: jax.vjp(move, x)[1](x)[0] if gradient else move(x))
    compiled = program.lower(jnp.zeros((1, 1024, 8))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes == 0
    assert compiled.cost_analysis()["bytes accessed"] <= 2.05 * 4 * 1024 * 8
    for name in ("gather", "while", "conditional"):
        assert f" {name}(" not in compiled.as_text()


def test_one_rank_is_the_identity_without_an_operation():
    for layout in ("zigzag", "striped", "contiguous"):
        for x in (np.arange(7), jnp.arange(7)):
            assert reorder_sequence(x, 1, 0, layout=layout) is x
            assert reorder_sequence(x, 1, 0, layout=layout, mesh_axis="context") is x
        jaxpr = jax.make_jaxpr(lambda y, name=layout: reorder_sequence(y, 1, 0, layout=name))(x)
        assert not jaxpr.eqns


def test_none_and_trees_pass_through():
    assert reorder_sequence(None, 2) is None
    batch = {"tokens": np.arange(8)[None], "positions": None, "more": [jnp.arange(4)[None]]}
    out = reorder_sequence(batch, 2)
    assert out["positions"] is None
    assert out["tokens"].tolist() == [[0, 1, 6, 7, 2, 3, 4, 5]]
    assert out["more"][0].tolist() == [[0, 3, 1, 2]]


def test_it_maps_over_a_batch():
    x = sample((3, None), 12)
    out = jax.vmap(lambda row: reorder_sequence(row, 3, seq_dim=0))(x)
    np.testing.assert_array_equal(out, x[:, order("zigzag", 12, 3)])


@pytest.mark.parametrize("make", [np.zeros, jnp.zeros])
def test_what_cannot_be_reordered_is_refused(make):
    with pytest.raises(ValueError, match=r"seq_len=10 .* cp=2.*2\*cp = 4.*8 or 12"):
        reorder_sequence(make((1, 10)), 2)
    with pytest.raises(ValueError, match=r"seq_len=10"):
        jax.jit(lambda x: reorder_sequence(x, 2))(make((1, 10)))
    with pytest.raises(ValueError, match=r"dimension 1 .* shape \(8,\)"):
        reorder_sequence(make(8), 2)
    with pytest.raises(ValueError, match=r"dimension 3 .* shape \(8,\)"):
        reorder_sequence(make(8), 1, seq_dim=3)
    with pytest.raises(ValueError, match="cp=0"):
        reorder_sequence(make((1, 8)), 0)
    with pytest.raises(ValueError, match="layout 'snake' is not one of"):
        reorder_sequence(make((1, 8)), 2, layout="snake")


def test_what_is_no_array_is_refused():
    with pytest.raises(TypeError, match="not int"):
        reorder_sequence([1, 2, 3, 4], 2, seq_dim=0)
