"""A SentencePiece model, through the package `sentencepiece`."""

from __future__ import annotations

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


class SentencePieceTokenizer:
    """What a SentencePiece model does; documents begin with BOS if tokenizer_config.json says
    add_bos_token.

    Tokens that were added beside the model (added_tokens.json, added_tokens_decoder) have their
    ids, and are found where a text marks special tokens.
    """

    def __init__(self, files: TokenizerFiles, eos_token: str | None) -> None:
        self._model, content = _load(files)
        pieces = {self._model.id_to_piece(i): i for i in range(self._model.get_piece_size())}
        vocab = pieces | dict(files.added_tokens)
        own_eos = [i for i in (self._model.eos_id(),) if i >= 0]
        self.vocab_size = max(vocab.values()) + 1
        self.eos_id = eos_of(files, vocab, eos_token, own_eos)
        self.prefix = self._prefix(files, vocab)
        self.stop_ids = frozenset({self.eos_id, *files.stop_ids})
        control = {name: i for name, i in pieces.items() if self._model.is_control(i)}
        marks = control | dict(files.added_tokens)
        self._special = SpecialTokens(marks, self.vocab_size)
        self.special_ids = self._special.ids | {self.eos_id}
        self.special_tokens: Mapping[str, str] = self._own_names() | dict(files.special_tokens)
        self.chat_template = files.chat_template
        identity = content + repr((self.eos_id, self.prefix, sorted(marks))).encode()
        self.name = f"sentencepiece-{hashlib.blake2b(identity, digest_size=8).hexdigest()}"

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0].tolist()

    def decode(self, ids: Sequence[int]) -> str:
        own = range(self._model.get_piece_size())
        return self._model.decode(
            [int(i) for i in ids if int(i) in own and int(i) not in self.special_ids]
        )

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._special.encode_as_text(texts, self._encode_plain)

    def encode_marked(self, text: str) -> Spans:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for start, part, is_special in self._special.split(text):
            if is_special:
                ids.append(self._special.tokens[part])
                offsets.append((start, start + len(part)))
                continue
            encoded = self._model.encode(part, return_type="offset_mapping")
            ids += encoded["ids"]
            offsets += [(start + first, start + stop) for first, stop in encoded["offsets"]]
        return covering_spans(ids, offsets)

    def _encode_plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._model.encode(list(texts), return_type="numpy", num_threads=-1)

    def _prefix(self, files: TokenizerFiles, vocab: dict[str, int]) -> tuple[int, ...]:
        if not files.add_bos:
            return ()
        bos = vocab.get(files.special_tokens.get("bos_token", ""), self._model.bos_id())
        if bos < 0:
            raise DataError("add_bos_token is true, but the tokenizer has no BOS token")
        return (bos,)

    def _own_names(self) -> dict[str, str]:
        model = self._model
        ids = {"bos_token": model.bos_id(), "eos_token": self.eos_id, "unk_token": model.unk_id()}
        own = range(model.get_piece_size())
        return {name: model.id_to_piece(i) for name, i in ids.items() if i in own}


def _load(files: TokenizerFiles) -> tuple[Any, bytes]:
    sentencepiece = need(
        "sentencepiece", "sentencepiece", f"data.tokenizer={printable(files.model)}"
    )
    try:
        content = files.model.read_bytes()
    except OSError as error:
        raise unreadable(files.model, error) from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content), content
    except RuntimeError as error:
        raise DataError(f"{printable(files.model)} is no SentencePiece model: {error}") from error
