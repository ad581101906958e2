"""Text from a trained model: a prompt is read at once, then tokens are drawn one by one."""

# V vocabulary

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.schema import GenerateConfig
from data import Tokenizer
from model import Transformer, with_parameters
from model.decode import Cache, empty_cache, extend


def generate(
    model: Transformer,
    parameters: Any,
    prompt: list[int],
    options: GenerateConfig,
    tokenizer: Tokenizer,
) -> Iterator[int]:
    """Yields up to `options.tokens` token ids that continue the prompt; ends after a stop token.

    Temperature 0 takes the likeliest token; otherwise ids are drawn from
    softmax(logits / temperature) with keys that depend on the seed and the position alone. Rows
    of the embedding table that the tokenizer has no token for are never chosen.
    """

    @jax.jit
    def advance(parameters: Any, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        logits, cache = extend(with_parameters(model, parameters), tokens, cache)
        return logits[0, -1, : tokenizer.vocab_size], cache

    pick = jax.jit(_pick)
    slots = len(prompt) + options.tokens
    cache = empty_cache(model.config, 1, slots, model.compute_dtype)
    key, temperature = jax.random.key(options.seed), np.float32(options.temperature)
    logits, cache = advance(parameters, jnp.asarray([prompt], jnp.int32), cache)
    for position in range(options.tokens):
        token = pick(jax.random.fold_in(key, position), logits, temperature)
        yield int(token)
        if int(token) in tokenizer.stop_ids or position == options.tokens - 1:
            return
        logits, cache = advance(parameters, token[None, None], cache)


def _pick(key: jax.Array, logits_V: jax.Array, temperature: jax.Array) -> jax.Array:
    noise = jax.random.gumbel(key, logits_V.shape)
    return jnp.argmax(logits_V + temperature * noise).astype(jnp.int32)
