"""Long text without spaces has the tokens that the package gives the whole, split into words."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

from data.hub_tokenizer import HubTokenizer
from data.tokenizer_files import find_tokenizer
from data.unsplit import unsplit

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITTERS = {
    "words": lambda: [WORDS],
    "every_digit": lambda: [pre_tokenizers.Digits(individual_digits=True), WORDS],
    "runs_of_digits": lambda: [pre_tokenizers.Digits(individual_digits=False), WORDS],
    "qwen": lambda: [pre_tokenizers.Split(Regex(QWEN), "isolated"), BYTES],
    "threes": lambda: [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), WORDS],
    "space_in_front": lambda: [pre_tokenizers.ByteLevel(add_prefix_space=True)],
}
KNOWN = ["words", "every_digit", "runs_of_digits", "qwen"]


def drawn(alphabet: str, size: int, seed: int = 0) -> str:
    return "".join(np.random.default_rng(seed).choice(list(alphabet), size).tolist())


def trained(splitter: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITTERS[splitter]())
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    samples = [drawn("0123456789abc'-sS", 30, seed) for seed in range(200)]
    tokenizer.train_from_iterator(samples, trainer)
    tokenizer.add_tokens([AddedToken("a1-")])
    return tokenizer


@pytest.mark.parametrize(
    "text",
    [
        drawn("0123456789", 3000),
        drawn("0123456789abcdef", 3000),
        drawn("01234-_.s{", 3000),
        drawn("abc01'-sS", 3000),
        drawn("abc1é", 3000),
        drawn("abc1\t", 3000),
    ],
    ids=lambda text: repr(text[:8]),
)
@pytest.mark.parametrize("splitter", SPLITTERS)
def test_long_runs_have_the_tokens_of_the_whole(
    splitter: str, text: str, tokenizer_folder: Callable[..., str]
) -> None:
    tokenizer = trained(splitter)
    opened = HubTokenizer(find_tokenizer(tokenizer_folder(tokenizer)), "</s>")
    texts = [text, "a1", text[:1777], text[:1500] + " 1", text[5:]]
    for made, given in zip(opened.encode_many(texts), texts, strict=True):
        assert made.tolist() == tokenizer.encode(given).ids


def test_which_text_goes_without_words() -> None:
    made = {name: unsplit(trained(name).to_str().encode()) for name in SPLITTERS}
    known = {name: found for name, found in made.items() if found is not None}
    assert list(known) == KNOWN
    run = drawn("abc12", 1024)
    assert all(found.fits(run) for found in known.values())
    assert [name for name, found in known.items() if found.fits(run + "-")] == KNOWN[:3]
    for text in (run[1:], run + "'", run + " ", run + "\t", run + "\x1c", run + "é"):
        assert not any(found.fits(text) for found in known.values())


def _with_merge(content: dict[str, Any], left: str, right: str) -> dict[str, Any]:
    model = content["model"]
    return content | {"model": model | {"merges": [*model["merges"], [left, right]]}}


@pytest.mark.parametrize(
    ("change", "is_sure"),
    [
        (lambda content: content, True),
        (lambda content: content | {"normalizer": {"type": "NFC"}}, True),
        (lambda content: content | {"normalizer": {"type": "Lowercase"}}, False),
        (lambda content: content | {"pre_tokenizer": None}, False),
        (lambda content: content | {"model": content["model"] | {"ignore_merges": True}}, False),
        (lambda content: content | {"model": content["model"] | {"dropout": 0.1}}, False),
        (lambda content: _with_merge(content, "Ġ", "1a"), True),
        (lambda content: _with_merge(content, "a", "1"), False),
        (lambda content: _with_merge(content, "1", "2"), False),
        (lambda content: _with_merge(content, "a", "-"), False),
    ],
)
def test_a_merge_of_two_words_or_another_model_is_not_trusted(
    change: Callable[[dict[str, Any]], dict[str, Any]], is_sure: bool
) -> None:
    content = json.loads(trained("every_digit").to_str())
    assert (unsplit(json.dumps(change(content)).encode()) is not None) == is_sure
