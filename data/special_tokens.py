"""Which token ends a document, and how text is kept from spelling special tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from data.documents import DataError
from data.scan import printable
from data.texts import Encode
from data.tokenizer_files import TokenizerFiles

# What public tokenizers call the end of a text; a later row counts if no earlier one is there.
EOS_NAMES = (
    ("</s>", "<eos>", "<EOS>", "[EOS]", "<|eos|>", "<|endoftext|>", "<|end_of_text|>"),
    ("<\uff5cend▁of▁sentence\uff5c>", "<|end▁of▁sentence|>", "<|end_of_sentence|>", "<eot>"),
    ("<|im_end|>", "<|eot_id|>", "[SEP]"),
)


def eos_of(
    files: TokenizerFiles, vocab: Mapping[str, int], chosen: str | None, appended: Sequence[int]
) -> int:
    """The id of the token that ends a document.

    It is, whichever is there first: data.eos_token (`chosen`), eos_token of the tokenizer's files,
    eos_token_id of the model's, what the tokenizer itself appends, a token with a usual name.
    Raises DataError where none is, where names vie, and where the token is not in the vocabulary.
    """
    if chosen is not None:
        return _id_of(chosen, vocab, f"data.eos_token={chosen}")
    if name := files.special_tokens.get("eos_token"):
        return _id_of(name, vocab, f"eos_token={name} in the files of {printable(files.model)}")
    known = (*files.stop_ids[:1], *appended[-1:])
    return known[0] if known else vocab[_usual_name(files, vocab)]


def _id_of(name: str, vocab: Mapping[str, int], origin: str) -> int:
    if name not in vocab:
        raise DataError(f"{origin}: the vocabulary of {len(vocab):,} tokens has no such token")
    return vocab[name]


def _usual_name(files: TokenizerFiles, vocab: Mapping[str, int]) -> str:
    for names in EOS_NAMES:
        there = [name for name in names if name in vocab]
        if len(there) > 1:
            raise DataError(
                f"{printable(files.model)} does not say which token ends a text (eos_token), and "
                f"has {' and '.join(there)}; data.eos_token={there[0]} chooses"
            )
        if there:
            return there[0]
    raise DataError(
        f"{printable(files.model)} has no eos token: tokenizer_config.json names no eos_token, the "
        f"tokenizer appends none, and none of {', '.join(EOS_NAMES[0])} is in the vocabulary; "
        "data.eos_token=TOKEN would name one"
    )


class SpecialTokens:
    """Special tokens, found where a text spells them."""

    def __init__(self, tokens: Mapping[str, int], vocab_size: int) -> None:
        self.tokens = tokens
        self.ids = frozenset(tokens.values())
        self._is_special = np.zeros(vocab_size, bool)
        self._is_special[list(self.ids)] = True
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def split(self, text: str) -> list[tuple[int, str, bool]]:
        """Parts of a text: where each starts, what it is, and whether it is a special token.

        `a</s>b` -> [(0, a, no), (1, </s>, yes), (5, b, no)].
        """
        parts, at = [], 0
        for match in self._pattern.finditer(text):
            if match.start() > at:
                parts.append((at, text[at : match.start()], False))
            parts.append((match.start(), match.group(), True))
            at = match.end()
        if at < len(text):
            parts.append((at, text[at:], False))
        return parts

    def encode_as_text(self, texts: Sequence[str], encode: Encode) -> list[np.ndarray]:
        """Encodes texts so that what spells a special token stays text.

        Some models have special tokens among their words (Unigram), and find them in a text. Such
        a text is cut within each, `a</s>b` -> `a<` `/s>b`, and encoded in parts.
        """
        encoded = encode(texts)
        for i, ids in enumerate(encoded):
            if self._is_special[ids].any():
                encoded[i] = np.concatenate(encode(self._broken_up(texts[i])))
        return encoded

    def _broken_up(self, text: str) -> list[str]:
        cuts = [match.start() + 1 for match in self._pattern.finditer(text)]
        return [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, None], strict=True)]
