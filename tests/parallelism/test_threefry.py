"""The fusible generator draws what jax.random does, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism.threefry import fold_in, fusible_key, hash_block

SEED = 20240607


def both(draw):
    """A draw from JAX's own key and from the fusible one, each jitted."""
    data = jax.random.key_data(jax.random.key(SEED))
    own = jax.jit(lambda words: draw(jax.random.wrap_key_data(words, impl="threefry2x32")))
    return np.asarray(own(data)), np.asarray(jax.jit(lambda words: draw(fusible_key(words)))(data))


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.bits(key, (), "uint32"),
        lambda key: jax.random.bits(key, (7,), "uint8"),
        lambda key: jax.random.bits(key, (3, 5, 2), "uint16"),
        lambda key: jax.random.normal(key, (37, 11)),
        lambda key: jax.random.truncated_normal(key, -2, 2, (5, 3), jnp.bfloat16),
        lambda key: jax.random.uniform(jax.random.split(key, 3)[2], (9,)),
        lambda key: jax.random.randint(jax.random.fold_in(key, 5), (13,), 0, 1000),
        lambda key: jax.random.permutation(key, 17),
        lambda key: jax.random.orthogonal(key, 6),
    ],
)
def test_every_function_of_jax_random_gives_the_same_bits(draw):
    own, fusible = both(draw)
    assert own.dtype == fusible.dtype
    assert own.tobytes() == fusible.tobytes()


def test_the_hash_gives_the_published_answers():
    # Known-answer tests of the Random123 library for threefry2x32, 20 rounds.
    ones = np.uint32(0xFFFFFFFF)
    answers = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ones, ones), (ones, ones), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    for key, block, wanted in answers:
        words = [tuple(np.array([word], np.uint32) for word in pair) for pair in (key, block)]
        assert tuple(int(word[0]) for word in hash_block(*words)) == wanted


def test_keys_fold_on_the_host_as_in_jax():
    numbers = np.array([0, 1, 77, 2**32 - 1], np.uint32)
    root = jax.random.key(SEED)
    wanted = [jax.random.key_data(jax.random.fold_in(root, number)) for number in numbers]
    keys = np.broadcast_to(np.asarray(jax.random.key_data(root)), (4, 2))
    assert fold_in(keys, numbers).tolist() == np.stack(wanted).tolist()


def test_a_draw_needs_no_memory_but_its_output():
    compiled = jax.jit(lambda words: jax.random.normal(fusible_key(words), (512, 512)))
    memory = compiled.lower(np.zeros(2, np.uint32)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1024
