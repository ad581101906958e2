"""Layouts: hand-worked orders, their properties, balance and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism.layout import LAYOUTS, Chunk, Layout

HAND_WORKED = [
    ("zigzag", 1, [0, 1, 2, 3, 4]),
    ("zigzag", 2, [0, 1, 6, 7, 2, 3, 4, 5]),
    ("zigzag", 3, [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]),
    ("zigzag", 5, [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]),
    ("striped", 1, [0, 1, 2]),
    ("striped", 2, [0, 2, 4, 6, 1, 3, 5, 7]),
    ("striped", 3, [0, 3, 6, 1, 4, 7, 2, 5, 8]),
    ("contiguous", 3, [0, 1, 2, 3, 4, 5]),
]


@pytest.mark.parametrize(("name", "cp", "order"), HAND_WORKED)
def test_permutation_is_the_hand_worked_order(name, cp, order):
    layout = Layout(name, cp)
    assert layout.permutation(len(order)).tolist() == order
    assert layout.permutation(len(order)).dtype == np.int32
    assert layout.inverse(len(order)).tolist() == np.argsort(order).tolist()
    assert layout.inverse(len(order)).dtype == np.int32


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("cp", range(1, 9))
@pytest.mark.parametrize("multiple", [1, 2, 3, 5])
def test_every_token_is_kept_once(name, cp, multiple):
    layout, seq_len = Layout(name, cp), 2 * cp * multiple
    order = layout.permutation(seq_len)
    assert sorted(order.tolist()) == list(range(seq_len))
    assert order[layout.inverse(seq_len)].tolist() == list(range(seq_len))
    chunks = [chunk for rank in layout.chunks(seq_len) for chunk in rank]
    assert np.concatenate([chunk.positions() for chunk in chunks]).tolist() == order.tolist()
    assert len(chunks) == cp * layout.chunks_per_rank
    assert seq_len % layout.multiple == 0


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("cp", [1, 2, 3, 8])
def test_fold_is_indexing_by_the_permutation(name, cp):
    layout, seq_len = Layout(name, cp), 2 * cp * 3
    x = np.random.default_rng(0).normal(size=(2, seq_len, 3))
    folded = x[:, layout.permutation(seq_len)]
    for array in (x, jnp.asarray(x)):
        out = layout.fold(array)
        assert isinstance(out, np.ndarray) == isinstance(array, np.ndarray)
        np.testing.assert_array_equal(out, np.asarray(folded, out.dtype))
        np.testing.assert_array_equal(layout.unfold(out, dim=-2), array)


def test_chunks_tell_where_a_rank_reads():
    assert Layout("zigzag", 2).chunks(8) == (
        (Chunk(0, 2), Chunk(6, 2)),
        (Chunk(2, 2), Chunk(4, 2)),
    )
    assert Layout("striped", 2).chunks(6) == ((Chunk(0, 3, step=2),), (Chunk(1, 3, step=2),))
    assert Layout("contiguous", 2).chunks(6) == ((Chunk(0, 3),), (Chunk(3, 3),))
    assert Layout("zigzag", 1).chunks(7) == ((Chunk(0, 7),),)


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("zigzag", [520, 520, 520, 520]),
        ("contiguous", [136, 392, 648, 904]),
        ("striped", [496, 512, 528, 544]),
    ],
)
def test_causal_pairs_per_rank(name, pairs):
    """64 tokens, 4 ranks: a token at position p attends to p + 1 keys."""
    positions = Layout(name, 4).permutation(64).reshape(4, 16)
    assert (positions + 1).sum(axis=1).tolist() == pairs


@pytest.mark.parametrize(
    ("name", "cp", "seq_len", "words"),
    [
        ("zigzag", 2, 10, ["seq_len=10", "cp=2", "2*cp = 4", "8 or 12"]),
        ("zigzag", 2, 2, ["seq_len=2", "cp=2", "2*cp = 4", "nearest legal: 4"]),
        ("zigzag", 3, 13, ["seq_len=13", "cp=3", "2*cp = 6", "12 or 18"]),
        ("striped", 3, 10, ["seq_len=10", "cp=3", "cp = 3", "9 or 12"]),
        ("contiguous", 4, 6, ["seq_len=6", "cp=4", "4 or 8"]),
        ("zigzag", 2, 0, ["seq_len=0", "nearest legal: 4"]),
    ],
)
def test_a_length_that_does_not_fit_is_refused(name, cp, seq_len, words):
    layout = Layout(name, cp)
    x = np.zeros((1, seq_len))
    for refuse in (
        lambda: layout.check(seq_len),
        lambda: layout.permutation(seq_len),
        lambda: layout.inverse(seq_len),
        lambda: layout.chunks(seq_len),
        lambda: layout.fold(x),
        lambda: layout.unfold(jnp.asarray(x)),
    ):
        with pytest.raises(ValueError) as error:
            refuse()
        for word in words:
            assert word in str(error.value)


def test_a_wrong_layout_cp_or_dimension_is_refused():
    with pytest.raises(ValueError, match=r"'zigzga' is not one of zigzag, striped, contiguous"):
        Layout("zigzga", 2)
    with pytest.raises(ValueError, match="cp=0"):
        Layout("zigzag", 0)
    for dim in (2, -3):
        with pytest.raises(ValueError, match=rf"dimension {dim} .* shape \(2, 8\)"):
            Layout("zigzag", 2).fold(np.zeros((2, 8)), dim)


def test_the_permutation_cannot_be_changed_by_a_caller():
    for order in (Layout("zigzag", 2).permutation(8), Layout("zigzag", 2).inverse(8)):
        with pytest.raises(ValueError, match="read-only"):
            order[0] = 5


def test_one_rank_moves_nothing():
    x = np.arange(7)
    assert Layout("zigzag", 1).fold(x, 0) is x
    jaxpr = jax.make_jaxpr(lambda y: Layout("zigzag", 1).unfold(y, 0))(x)
    assert not jaxpr.eqns
