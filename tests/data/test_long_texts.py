"""Long texts are cut into pieces whose tokens are those of the whole text."""

import io
import json.decoder
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from configs.schema import DataConfig
from data import open_data
from data.texts import pieces

TEXT = Path(json.decoder.__file__).read_text() * 2
WORD = "".join(np.random.default_rng(0).choice(list("abcdefgh"), 30_000).tolist())


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def with_space_in_front() -> Tokenizer:
    """As Llama 2: a space before every text; words matter in training only, later it has none."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer


def trained(tokenizer: Tokenizer) -> Callable[[Sequence[str]], list[np.ndarray]]:
    options = {"vocab_size": 500, "show_progress": False, "special_tokens": ["<unk>"]}
    if isinstance(tokenizer.model, models.Unigram):
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    else:
        trainer = trainers.BpeTrainer(**options)
    words = WORD[:2000]
    samples = [*TEXT[:9000].splitlines(), *(words[i : i + 20] for i in range(0, 2000, 20))]
    tokenizer.train_from_iterator(samples, trainer)
    if tokenizer.normalizer is not None:
        tokenizer.pre_tokenizer = None

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(tokenizer.encode(text).ids) for text in texts]

    return encode


def sentence_piece() -> Callable[[Sequence[str]], list[np.ndarray]]:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT[:9000].splitlines()), model_writer=written, vocab_size=500,
        model_type="bpe", byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return lambda texts: model.encode(list(texts), return_type="numpy")


ENCODERS = {
    "byte_level": lambda: trained(byte_level()),
    "with_space_in_front": lambda: trained(with_space_in_front()),
    "metaspace": lambda: trained(metaspace()),
    "unigram": lambda: trained(unigram()),
    "sentencepiece": sentence_piece,
}


@pytest.mark.parametrize("name", ENCODERS)
def test_pieces_have_the_tokens_of_the_text(name: str) -> None:
    encode = ENCODERS[name]()
    chunks = [TEXT[i : i + 700] for i in range(0, len(TEXT), 700)]
    cut = list(pieces(chunks, encode, piece_characters=1000))
    assert len(cut) > len(TEXT) / 1100
    assert max(map(len, cut)) <= 2000
    (whole,) = encode([TEXT])
    np.testing.assert_array_equal(np.concatenate(encode(cut)), whole)


def test_one_long_word_is_cut_without_changing_its_tokens() -> None:
    encode = trained(byte_level())
    cut = list(pieces([WORD], encode, piece_characters=4096))
    assert len(cut) == 7
    (whole,) = encode([WORD])
    np.testing.assert_array_equal(np.concatenate(encode(cut)), whole)


def test_where_no_cut_fits_nothing_is_lost() -> None:
    def as_one_token(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([0]) for _ in texts]

    assert "".join(pieces(["x" * 10_000], as_one_token, 1000)) == "x" * 10_000


@pytest.mark.parametrize("chunks", [[], [""], ["short"], ["a", "", "b"]], ids=len)
def test_short_texts_stay_whole(chunks: list[str]) -> None:
    assert list(pieces(chunks, lambda texts: [np.array([0])] * len(texts))) == ["".join(chunks)]


def test_a_huge_text_is_never_in_memory_at_once() -> None:
    def chunks() -> Iterator[str]:
        for _ in range(64):
            yield "some words " * (1 << 15)

    tracemalloc.start()
    total = sum(map(len, pieces(chunks(), lambda texts: [np.array([0, 0, 0])] * len(texts))))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total >= 64 * 11 * (1 << 15) - 1000  # a space is left out at each cut, at most
    assert peak < 8 * 11 * (1 << 15)


def test_a_long_document_through_the_whole_data_set(
    data_config: Callable[..., DataConfig],
    tokenizer_folder: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
    tmp_path: Path,
) -> None:
    text = (TEXT * 12)[: 1 << 18]
    (tmp_path / "line.txt").write_text(text)
    config = data_config(
        path=str(tmp_path / "line.txt"), tokenizer=tokenizer_folder(toy_tokenizer()),
        pack=False, seq_len=1 << 19, batch=1,
    )  # fmt: skip
    dataset = open_data(config, "train", 512)
    batch = dataset.batch(0)
    size = int(batch["weights"].sum())
    assert batch["tokens"][0, :size].tolist() == toy_tokenizer().encode(text).ids
    assert batch["targets"][0, size - 1] == dataset.tokenizer.eos_id
