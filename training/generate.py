"""Text from a trained model: prompts are read at once, then tokens are drawn one by one."""

# B prompts of a batch, T tokens of the longest, V vocabulary

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.schema import GenerateConfig
from data import DataError, Tokenizer
from model import Transformer, with_parameters
from model.decode import Cache, empty_cache, extend
from training.signals import StopSignal


def generate(
    model: Transformer,
    parameters: Any,
    prompts: Sequence[list[int]],
    options: GenerateConfig,
    tokenizer: Tokenizer,
    stop: StopSignal,
) -> Iterator[list[int]]:
    """Yields what continues each prompt, in their order: up to `options.tokens` token ids.

    `options.batch` prompts go on together, filled up to the longest of all in front, where nothing
    attends to them; each goes on until its first stop token. Temperature 0 takes the likeliest
    token; otherwise ids are drawn from softmax(logits / temperature) with keys that depend on the
    seed, the place in the batch and the number of the token. Rows of the embedding table that the
    tokenizer has no token for are never chosen. A signal cuts
    the continuations short.
    """

    @jax.jit
    def advance(parameters: Any, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        logits, cache = extend(with_parameters(model, parameters), tokens, cache)
        return logits[:, -1, : tokenizer.vocab_size], cache

    pick = jax.jit(_pick)
    longest = max(map(len, prompts))
    key, temperature = jax.random.key(options.seed), np.float32(options.temperature)
    for start in range(0, len(prompts), options.batch):
        if stop.requested:
            return
        tokens_BT, padding = _filled_up(prompts[start : start + options.batch], longest)
        slots = longest + options.tokens
        cache = empty_cache(model.config, len(padding), slots, model.compute_dtype, padding)
        drawn: list[np.ndarray] = []
        tokens = jnp.asarray(tokens_BT)
        while (
            len(drawn) < options.tokens and not _all_done(drawn, tokenizer) and not stop.requested
        ):
            logits, cache = advance(parameters, tokens, cache)
            tokens = pick(jax.random.fold_in(key, len(drawn)), logits, temperature)[:, None]
            drawn.append(np.asarray(tokens[:, 0]))
        columns = np.array(drawn, np.int32).reshape(-1, len(padding))
        yield from (_until_stop(column.tolist(), tokenizer) for column in columns.T)


def read_prompts(options: GenerateConfig) -> list[str]:
    """generate.prompt, or the lines of generate.prompts that are not blank.

    Raises DataError for a file that is not UTF-8 text, or has no prompt.
    """
    if options.prompts is None:
        return [options.prompt]
    try:
        text = Path(options.prompts).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"generate.prompts={options.prompts} cannot be read: {error}") from None
    prompts = [line for line in text.split("\n") if line.strip()]
    if not prompts:
        raise DataError(f"generate.prompts={options.prompts} has no prompt, only blank lines")
    return prompts


def shown(prompt: str, continuation: str) -> str:
    """One line of JSON, whatever line breaks were generated."""
    return json.dumps({"prompt": prompt, "continuation": continuation}, ensure_ascii=False)


def _filled_up(prompts: Sequence[list[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """[1 2], [3 4 5] -> [0 1 2], [3 4 5], and how much was put in front of each: 1, 0."""
    padding = np.array([length - len(prompt) for prompt in prompts], np.int32)
    rows = [[0] * (length - len(prompt)) + prompt for prompt in prompts]
    return np.array(rows, np.int32), padding


def _all_done(drawn: list[np.ndarray], tokenizer: Tokenizer) -> bool:
    return bool(drawn) and bool(np.isin(drawn, list(tokenizer.stop_ids)).any(0).all())


def _until_stop(tokens: list[int], tokenizer: Tokenizer) -> list[int]:
    """The tokens to the first stop token, which is the last."""
    size = sum(1 for _ in itertools.takewhile(lambda i: i not in tokenizer.stop_ids, tokens))
    return tokens[: size + 1]


def _pick(key: jax.Array, logits_BV: jax.Array, temperature: jax.Array) -> jax.Array:
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(logits_BV)))
    noise_BV = jax.vmap(lambda key: jax.random.gumbel(key, logits_BV.shape[1:]))(keys_B)
    return jnp.argmax(logits_BV + temperature * noise_BV, axis=-1).astype(jnp.int32)
