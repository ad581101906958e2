"""A tokenizer.json, through the package `tokenizers`."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.documents import DataError
from data.extras import need
from data.scan import printable, unreadable
from data.special_tokens import SpecialTokens, eos_of
from data.tokenizer import Spans, covering_spans
from data.tokenizer_files import TokenizerFiles
from data.unsplit import Unsplit, is_one_long_word, unsplit

_PROBES = 64


class HubTokenizer:
    """What a tokenizer.json does, without truncation or padding.

    The tokens that its post-processor puts in front of a text are the `prefix`; what it puts
    behind is left out, as every document gets exactly one EOS. add_bos_token of
    tokenizer_config.json outranks the post-processor, as in transformers.
    """

    def __init__(self, files: TokenizerFiles, eos_token: str | None) -> None:
        self._tokenizer, content = _load(files)
        vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        special = [t for t in self._tokenizer.get_added_tokens_decoder().values() if t.special]
        before, after = _added_by_post_processor(self._tokenizer)
        self.vocab_size = max(vocab.values()) + 1
        self.eos_id = eos_of(files, vocab, eos_token, after)
        self.prefix = _prefix(files, vocab, before)
        self.stop_ids = frozenset({self.eos_id, *files.stop_ids})
        names = {token.content for token in special} | {self._tokenizer.id_to_token(self.eos_id)}
        self._content = content
        self._special = SpecialTokens({name: vocab[name] for name in names}, self.vocab_size)
        self.special_ids = self._special.ids
        self.special_tokens: Mapping[str, str] = self._own_names() | dict(files.special_tokens)
        self.chat_template = files.chat_template
        identity = content + repr((self.eos_id, self.prefix)).encode()
        self._tokenizer.encode_special_tokens = True  # set for good: threads encode at once
        self.name = f"tokenizer.json-{hashlib.blake2b(identity, digest_size=8).hexdigest()}"

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0].tolist()

    def decode(self, ids: Sequence[int]) -> str:
        kept = [int(i) for i in ids if 0 <= int(i) < self.vocab_size]
        return self._tokenizer.decode([i for i in kept if i not in self.special_ids])

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._special.encode_as_text(texts, self._encode_text)

    def encode_marked(self, text: str) -> Spans:
        self._tokenizer.encode_special_tokens = False
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = True
        return covering_spans(encoding.ids, encoding.offsets)

    def _own_names(self) -> dict[str, str]:
        """What templates may call the tokens that are known here without a name in the files."""
        names = {"eos_token": self._tokenizer.id_to_token(self.eos_id)}
        if self.prefix:
            names["bos_token"] = self._tokenizer.id_to_token(self.prefix[0])
        return names

    def _encode_text(self, texts: Sequence[str]) -> list[np.ndarray]:
        if not any(map(is_one_long_word, texts)) or self._unsplit is None:
            return _encoded(self._tokenizer, texts)
        without_words, tokenizer = self._unsplit
        fitting = [i for i, text in enumerate(texts) if without_words.fits(text)]
        others = sorted(set(range(len(texts))).difference(fitting))
        encoded: dict[int, np.ndarray] = {}
        for chosen, numbers in ((self._tokenizer, others), (tokenizer, fitting)):
            ids = _encoded(chosen, [texts[i] for i in numbers])
            encoded.update(zip(numbers, ids, strict=True))
        return [encoded[i] for i in range(len(texts))]

    @functools.cached_property
    def _unsplit(self) -> tuple[Unsplit, Any] | None:
        """For long text without spaces; made when there is such a text."""
        if (found := unsplit(self._content)) is None:
            return None
        tokenizer = type(self._tokenizer).from_str(found.content)
        tokenizer.encode_special_tokens = True
        return found, tokenizer


def _encoded(tokenizer: Any, texts: Sequence[str]) -> list[np.ndarray]:
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except Exception as error:  # the package raises nothing narrower
        raise DataError(f"the tokenizer failed: {error}") from error
    return [np.array(encoding.ids, np.uint32) for encoding in encodings]


def _load(files: TokenizerFiles) -> tuple[Any, bytes]:
    tokenizers = need("tokenizers", "hf", f"data.tokenizer={printable(files.model)}")
    try:
        content = files.model.read_bytes()
    except OSError as error:
        raise unreadable(files.model, error) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises nothing narrower
        raise DataError(f"{printable(files.model)} is no tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if tokenizer.get_vocab_size(with_added_tokens=True) == 0:
        raise DataError(f"{printable(files.model)} has no tokens")
    return tokenizer, content


def _added_by_post_processor(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens put in front of a text, and those put behind."""
    for probe in ("a", *list(tokenizer.get_vocab())[:_PROBES]):
        try:
            encoding = tokenizer.encode(probe)
        except Exception:  # a word that the model does not know
            continue
        inside = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        if inside.size:
            return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]
    return [], []


def _prefix(files: TokenizerFiles, vocab: dict[str, int], before: list[int]) -> tuple[int, ...]:
    bos = vocab.get(files.special_tokens.get("bos_token", ""))
    if files.add_bos is False:
        return tuple(i for i in before if i != bos)
    if files.add_bos and bos is not None and bos not in before:
        return (bos, *before)
    return tuple(before)
