"""Documents made from a seed, with a rule in them that a small model learns."""

from __future__ import annotations

import hashlib

import numpy as np

from data.documents import DataError, Documents

NUM_DOCUMENTS = 1024
LARGEST_ALPHABET = 256
LARGEST_STRIDE = 8
SURPRISE = 1 / 16


class SyntheticDocuments(Documents):
    """Counting sequences: every token is the one before plus the document's own stride.

    One token in 16 jumps to a random place instead, so that the best loss is above zero. Tokens
    are 0..min(vocab_size - 1, 256) - 1, the last id of the vocabulary is left to EOS. Lengths are
    spread, evenly on a logarithmic scale, from an eighth of seq_len to twice of it. A document
    depends on (seed, its number, seq_len, vocab_size) only. Stride 3: [7 10 13 16 2 5 8 ...].
    """

    def __init__(self, seed: int, seq_len: int, vocab_size: int) -> None:
        if vocab_size < 2:
            raise DataError(
                f"data.source=synthetic: model.vocab_size={vocab_size} must be 2 or more, one "
                "token and one that ends a document"
            )
        self._seed = seed
        self._alphabet = min(vocab_size - 1, LARGEST_ALPHABET)
        spread = self._random(NUM_DOCUMENTS).random(NUM_DOCUMENTS)
        self.lengths = np.maximum(1, seq_len / 8 * 16**spread).astype(np.int64)

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=[self._seed % 2**64, stream]))

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        random = self._random(document)
        length = int(self.lengths[document])
        steps = np.full(length, random.integers(1, LARGEST_STRIDE + 1))
        surprises = random.random(length) < SURPRISE
        surprises[0] = True
        steps[surprises] = random.integers(0, self._alphabet, surprises.sum())
        return (np.cumsum(steps) % self._alphabet)[start:stop].astype(np.uint16)

    def name(self, document: int) -> str:
        return f"synthetic document {document}"

    def digest(self) -> str:
        first = self.read(0, 0, int(self.lengths[0]))
        return hashlib.blake2b(self.lengths.tobytes() + first.tobytes(), digest_size=8).hexdigest()
