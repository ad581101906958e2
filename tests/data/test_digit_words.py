"""Text of digits and letters without spaces has the tokens that the package gives the whole."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from data.digit_words import encode_words, fits, sets_digits_apart
from data.hub_tokenizer import HubTokenizer
from data.tokenizer_files import find_tokenizer

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITTERS = {
    "digits": lambda: [pre_tokenizers.Digits(individual_digits=True), WORDS],
    "qwen": lambda: [pre_tokenizers.Split(Regex(QWEN), "isolated"), BYTES],
    "runs_of_digits": lambda: [pre_tokenizers.Digits(individual_digits=False), WORDS],
    "words": lambda: [WORDS],
    "threes": lambda: [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), WORDS],
}


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
    return tokenizer


def as_json(tokenizer: Tokenizer) -> bytes:
    return tokenizer.to_str().encode()


@pytest.mark.parametrize(
    "text",
    [
        drawn("0123456789", 3000),
        drawn("0123456789abcdef", 3000),
        drawn("01234'-_sS", 3000),
        drawn("0abcabcabcabcabcabcabc", 600) + "1" * 300,
        "9" + "abcdefgh" * 60 + "7" * 200,  # a word of more bytes than a key holds
    ],
    ids=lambda text: text[:8],
)
@pytest.mark.parametrize("splitter", SPLITTERS)
def test_long_runs_have_the_tokens_of_the_whole(
    splitter: str, text: str, tokenizer_folder: Callable[..., str]
) -> None:
    tokenizer = trained(splitter)
    opened = HubTokenizer(find_tokenizer(tokenizer_folder(tokenizer)), "</s>")
    short, spaced = "a1", text[:500] + " 1"
    texts = [text, short, text[:777], spaced, text[5:]]
    for made, given in zip(opened.encode_many(texts), texts, strict=True):
        assert made.tolist() == tokenizer.encode(given).ids


def test_each_different_word_is_encoded_once() -> None:
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        asked.extend(texts)
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    texts = ["ab12ab", "1xab21"]
    made = encode_words(texts, encode)
    assert [bytes(ids).decode() for ids in made] == texts
    assert sorted(asked) == ["1", "2", "ab", "xab"]


def test_only_long_visible_ascii_with_digits_fits() -> None:
    run = "ab12" * 64
    assert fits(run)
    assert not fits(run[1:])
    for text in (run + " ", run + "\t", run + "\x1c", run + "é", run + "a" * 300):
        assert not fits(text)


def normalized(tokenizer: Tokenizer, normalizer: Any) -> Tokenizer:
    tokenizer.normalizer = normalizer
    return tokenizer


def with_token(tokenizer: Tokenizer, token: AddedToken) -> Tokenizer:
    tokenizer.add_tokens([token])
    return tokenizer


def test_which_tokenizers_surely_set_digits_apart() -> None:
    makers = {name: lambda name=name: trained(name) for name in SPLITTERS}
    sure = [name for name, make in makers.items() if sets_digits_apart(as_json(make()))]
    assert sure == ["digits", "qwen"]
    digits = makers["digits"]
    assert sets_digits_apart(as_json(normalized(digits(), normalizers.NFC())))
    assert sets_digits_apart(as_json(with_token(digits(), AddedToken("<think>"))))
    for unsure in (
        normalized(digits(), normalizers.Replace("1", "one")),
        with_token(digits(), AddedToken("a1")),
        with_token(digits(), AddedToken("ab", single_word=True)),
        with_token(trained("qwen"), AddedToken("x7")),
    ):
        assert not sets_digits_apart(as_json(unsure))


def test_a_tokenizer_without_a_pre_tokenizer_is_unsure() -> None:
    content = json.loads(trained("digits").to_str()) | {"pre_tokenizer": None}
    assert not sets_digits_apart(json.dumps(content).encode())
