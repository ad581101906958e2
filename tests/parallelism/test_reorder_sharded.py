"""reorder_sequence between ranks: the oracle's bits, two permutes at most, shardings kept."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from parallelism import reorder_sequence

EXCHANGE = {"zigzag": {"collective-permute": 2}, "striped": {"all-to-all": 1}}


def order(layout, seq_len, cp):
    if layout == "striped":
        return np.concatenate([np.arange(rank, seq_len, cp) for rank in range(cp)])
    chunks = np.arange(seq_len).reshape(2 * cp, -1)
    return np.concatenate([chunks[c] for r in range(cp) for c in (r, 2 * cp - 1 - r)])


def context_mesh(cp):
    return jax.make_mesh((cp,), ("context",), (AxisType.Auto,), devices=jax.devices()[:cp])


def sample(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def operations(compiled):
    names = "all-gather|all-reduce|all-to-all|collective-permute|gather|while|scatter"
    return Counter(re.findall(rf" ({names})(?:-start)?\(", compiled.as_text()))


def lengths(layout, cp):
    """Striped, twice: whole rows of the stripe in a shard, and not."""
    return [2 * cp * 3] if layout == "zigzag" else [cp * cp, cp * (cp + 1)]


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("cp", [2, 3, 4, 5, 6, 7, 8])
def test_ranks_exchange_what_take_would_pick(layout, cp):
    spec = P(None, "context")
    mesh = context_mesh(cp)
    with jax.set_mesh(mesh):
        for seq_len in lengths(layout, cp):
            x = sample(2, seq_len, 3)
            folded = np.take(x, order(layout, seq_len, cp), axis=1)
            for before, after, back in ((x, folded, False), (folded, x, True)):
                sharded = jax.device_put(before, NamedSharding(mesh, spec))
                step = jax.jit(
                    lambda y, back=back: reorder_sequence(y, cp, 1, back, layout, "context")
                )
                compiled = step.lower(sharded).compile()
                out = compiled(sharded)
                assert out.sharding.spec == spec
                np.testing.assert_array_equal(out, after)
                assert operations(compiled) == EXCHANGE[layout]


def test_short_shards_are_striped_too():
    """cp=4 with 1, 2 and 3 tokens a rank: one row of the stripe spans several ranks."""
    mesh = context_mesh(4)
    with jax.set_mesh(mesh):
        for seq_len in (4, 8, 12):
            x = jax.device_put(np.arange(seq_len), NamedSharding(mesh, P("context")))
            folded = reorder_sequence(x, 4, 0, layout="striped", mesh_axis="context")
            assert folded.tolist() == order("striped", seq_len, 4).tolist()
            back = reorder_sequence(folded, 4, 0, True, "striped", "context")
            assert back.tolist() == list(range(seq_len))


@pytest.mark.parametrize(("shape", "dim"), [((24,), -1), ((2, 3, 24, 2), 2), ((2, 2, 3, 24), -1)])
@pytest.mark.parametrize("layout", ["zigzag", "striped"])
def test_any_rank_and_dimension(shape, dim, layout):
    x = sample(*shape)
    spec = P(*[None] * (dim % len(shape)), "context")
    mesh = context_mesh(3)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, NamedSharding(mesh, spec))
        out = reorder_sequence(sharded, 3, dim, layout=layout, mesh_axis="context")
        np.testing.assert_array_equal(out, np.take(x, order(layout, 24, 3), axis=dim))
        back = reorder_sequence(out, 3, dim, True, layout, "context")
        np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("dtype", ["int32", "bool", "bfloat16"])
def test_dtypes(dtype):
    x = jnp.asarray(np.arange(16)[None] % 3).astype(dtype)
    with jax.set_mesh(context_mesh(4)):
        for layout in ("zigzag", "striped"):
            out = reorder_sequence(x, 4, layout=layout, mesh_axis="context")
            assert out.dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(out), np.asarray(x)[:, order(layout, 16, 4)])


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(("layout", "seq_len"), [("zigzag", 8), ("striped", 8), ("striped", 6)])
def test_other_dimensions_stay_sharded(kind, layout, seq_len):
    """XLA handles an all-to-all badly beside axes of its own; there, permutes carry the stripes."""
    spec = P("fsdp", "context", "tensor")
    x = sample(4, seq_len, 6)
    mesh = jax.make_mesh((2, 2, 2), ("fsdp", "context", "tensor"), (kind,) * 3)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, NamedSharding(mesh, spec))
        step = jax.jit(lambda y: reorder_sequence(y, 2, layout=layout, mesh_axis="context"))
        compiled = step.lower(sharded).compile()
        assert set(operations(compiled)) <= {"collective-permute", "all-to-all"}
        assert operations(compiled).total() <= 2
        assert compiled(sharded).sharding.spec == spec
        np.testing.assert_array_equal(step(sharded), x[:, order(layout, seq_len, 2)])


@pytest.mark.parametrize("to_contiguous", [False, True])
@pytest.mark.parametrize("seq_len", [16, 20])
def test_stripes_of_four_ranks_beside_another_axis(to_contiguous, seq_len):
    perm = order("striped", seq_len, 4)
    perm = np.argsort(perm) if to_contiguous else perm
    x, cotangent = sample(2, seq_len, 3), sample(2, seq_len, 3) + 1
    mesh = jax.make_mesh((2, 4), ("fsdp", "context"), (AxisType.Auto,) * 2)

    def move(y):
        return reorder_sequence(y, 4, 1, to_contiguous, "striped", "context")

    with jax.set_mesh(mesh):
        x, cotangent = jax.device_put((x, cotangent), NamedSharding(mesh, P("fsdp", "context")))
        compiled = jax.jit(lambda y, ct: jax.vjp(move, y)[1](ct)[0]).lower(x, cotangent).compile()
        gradient = compiled(x, cotangent)
        assert operations(compiled)["all-gather"] == 0
        np.testing.assert_array_equal(move(x), np.asarray(x)[:, perm])
        np.testing.assert_array_equal(gradient, np.asarray(cotangent)[:, np.argsort(perm)])


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("axes", [{"context"}, {"context", "fsdp"}])
def test_inside_shard_map_it_takes_the_shard(layout, axes):
    x = sample(4, 36, 2)
    mesh = jax.make_mesh(
        (2, 3), ("fsdp", "context"), (AxisType.Auto,) * 2, devices=jax.devices()[:6]
    )
    spec = P("fsdp" if "fsdp" in axes else None, "context")

    def shard(y):
        assert y.shape[1] == 12
        folded = reorder_sequence(y, 3, layout=layout, mesh_axis="context")
        return folded, reorder_sequence(folded, 3, 1, True, layout, "context")

    with jax.set_mesh(mesh):
        step = jax.shard_map(shard, in_specs=spec, out_specs=(spec, spec), axis_names=axes)
        folded, back = jax.jit(step)(x)
    np.testing.assert_array_equal(folded, x[:, order(layout, 36, 3)])
    np.testing.assert_array_equal(back, x)


def test_inside_shard_map_over_another_axis():
    x = sample(4, 12)
    mesh = jax.make_mesh(
        (2, 3), ("fsdp", "context"), (AxisType.Auto,) * 2, devices=jax.devices()[:6]
    )
    with jax.set_mesh(mesh):
        step = jax.shard_map(
            lambda y: reorder_sequence(y, 3, mesh_axis="context"),
            in_specs=P("fsdp"),
            out_specs=P("fsdp"),
            axis_names={"fsdp"},
        )
        np.testing.assert_array_equal(jax.jit(step)(x), x[:, order("zigzag", 12, 3)])


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("to_contiguous", [False, True])
@pytest.mark.parametrize("seq_len", [16, 24])
def test_the_gradient_is_the_inverse_permutation(layout, to_contiguous, seq_len):
    perm = order(layout, seq_len, 4)
    perm = np.argsort(perm) if to_contiguous else perm
    x, cotangent = sample(2, seq_len, 3), sample(2, seq_len, 3) + 1

    def move(y):
        return reorder_sequence(y, 4, 1, to_contiguous, layout, "context")

    mesh = context_mesh(4)
    with jax.set_mesh(mesh):
        x, cotangent = jax.device_put((x, cotangent), NamedSharding(mesh, P(None, "context")))
        pull = jax.jit(lambda y, ct: jax.vjp(move, y)[1](ct)[0])
        push = jax.jit(lambda y, ct: jax.jvp(move, (y,), (ct,))[1])
        compiled = pull.lower(x, cotangent).compile()
        gradient, tangent = compiled(x, cotangent), push(x, cotangent)
    np.testing.assert_array_equal(gradient, np.asarray(cotangent)[:, np.argsort(perm)])
    np.testing.assert_array_equal(tangent, np.asarray(cotangent)[:, perm])
    assert operations(compiled)["all-gather"] == 0
    assert operations(compiled)["collective-permute"] <= 2


def test_it_maps_and_scans():
    x = sample(2, 3, 8)
    with jax.set_mesh(context_mesh(4)):
        move = jax.jit(jax.vmap(lambda y: reorder_sequence(y, 4, mesh_axis="context")))
        np.testing.assert_array_equal(move(x), x[:, :, order("zigzag", 8, 4)])
        _, rows = jax.jit(
            lambda ys: jax.lax.scan(
                lambda c, y: (c, reorder_sequence(y, 4, mesh_axis="context")), 0, ys
            )
        )(x)
        np.testing.assert_array_equal(rows, x[:, :, order("zigzag", 8, 4)])


def test_a_concrete_array_brings_its_own_mesh():
    sharding = NamedSharding(context_mesh(4), P(None, "context"))
    x = jax.device_put(np.arange(16)[None], sharding)
    out = reorder_sequence(x, 4, mesh_axis="context")
    assert out.sharding.spec == P(None, "context")
    assert out[0].tolist() == order("zigzag", 16, 4).tolist()


def test_numpy_stays_on_the_host():
    with jax.set_mesh(context_mesh(4)):
        out = reorder_sequence(np.arange(8)[None], 4, mesh_axis="context")
    assert type(out) is np.ndarray
    assert out[0].tolist() == order("zigzag", 8, 4).tolist()


def test_a_mesh_that_does_not_fit_is_refused():
    x = jnp.zeros((1, 16))
    with pytest.raises(ValueError, match=r"mesh_axis='context' .*none set: see jax.set_mesh"):
        reorder_sequence(x, 4, mesh_axis="context")
    with jax.set_mesh(context_mesh(4)):
        with pytest.raises(ValueError, match=r"'rows' is not an axis .*\(context\)"):
            reorder_sequence(x, 4, mesh_axis="rows")
        for cp in (1, 2):
            with pytest.raises(ValueError, match=f"cp_size={cp}, but .* has 4 ranks"):
                reorder_sequence(x, cp, mesh_axis="context")
        for layout in ("zigzag", "striped"):
            with pytest.raises(ValueError, match=r"seq_len=18 .* cp=4"):
                reorder_sequence(jnp.zeros((1, 18)), 4, layout=layout, mesh_axis="context")
