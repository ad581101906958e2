"""SentencePiece models: BOS and EOS, added tokens, and where each token stands."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from configs.schema import DataConfig
from data import DataError, open_data, open_tokenizer

SENTENCES = ["the cat sat on the mat", "a dog and a cat", "hello world", "on and on"]
SPECIAL = {"eos_token": "</s>", "bos_token": "<s>"}


@pytest.fixture(scope="module")
def model() -> bytes:
    """Ids 0 `<unk>`, 1 `<s>`, 2 `</s>`, 3..258 bytes, then pieces of the sentences."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=written, vocab_size=290,
        model_type="bpe", byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    return written.getvalue()


@pytest.fixture
def folder(model: bytes, tmp_path: Path) -> Callable[..., str]:
    """Writes a folder of a model and of JSON files that are given by name."""

    def make(**files: object) -> str:
        place = tmp_path / "tokenizer"
        place.mkdir(exist_ok=True)
        (place / "tokenizer.model").write_bytes(model)
        for name, content in files.items():
            (place / f"{name}.json").write_text(json.dumps(content))
        return str(place)

    return make


def reference(model: bytes, text: str) -> list[int]:
    return sentencepiece.SentencePieceProcessor(model_proto=model).encode(text)


@pytest.mark.parametrize("add_bos", [None, False, True])
def test_every_document_has_one_eos_and_bos_where_asked(
    data_config: Callable[..., DataConfig],
    text_folder: Callable[..., str],
    folder: Callable[..., str],
    model: bytes,
    add_bos: bool | None,
) -> None:
    config = {} if add_bos is None else {"tokenizer_config": {"add_bos_token": add_bos}}
    path = text_folder({"0": b"the cat", "1": b"a dog"})
    data = data_config(path=path, tokenizer=folder(**config), seq_len=32, pack=False)
    batch = open_data(data, "train", 290).batch(0)
    used = batch["weights"][0] > 0
    bos = [1] if add_bos else []
    expected = [*bos, *reference(model, "the cat"), 2, *bos, *reference(model, "a dog"), 2]
    assert batch["tokens"][0][used].tolist() == expected[:-1]
    assert batch["targets"][0][used].tolist() == expected[1:]


def test_round_trip_and_text_that_spells_special_tokens(
    data_config: Callable[..., DataConfig], folder: Callable[..., str]
) -> None:
    tokenizer = open_tokenizer(data_config(tokenizer=folder()), 290)
    ids = tokenizer.encode("the cat </s> é")
    assert 2 not in ids
    assert tokenizer.decode([1, *ids, 2]) == "the cat </s> é"
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (290, 2)


def test_added_tokens_have_ids_and_marks(
    data_config: Callable[..., DataConfig], folder: Callable[..., str], model: bytes
) -> None:
    path = folder(added_tokens={"<|im_end|>": 290}, tokenizer_config=SPECIAL)
    with pytest.raises(DataError, match=r"token id 290 does not fit model\.vocab_size=290"):
        open_tokenizer(data_config(tokenizer=path), 290)
    tokenizer = open_tokenizer(data_config(tokenizer=path), 291)
    spans = tokenizer.encode_marked("<s>the cat<|im_end|>é")  # type: ignore[attr-defined]
    end = 10 + len("<|im_end|>")
    cat = reference(model, "the cat")
    assert spans.ids.tolist() == [1, *cat, 290, *reference(model, "é")]
    assert (spans.starts[0], spans.stops[0]) == (0, 3)
    at = 1 + len(cat)
    assert (spans.starts[at], spans.stops[at]) == (10, end)
    # Both bytes of `é`, and the space that the model puts in front, have its one character.
    assert np.all(spans.starts[at + 1 :] == end)
    assert np.all(spans.stops[at + 1 :] == end + 1)
    assert tokenizer.decode(spans.ids.tolist()) == "the cat é"


def test_a_model_file_alone_is_enough(
    data_config: Callable[..., DataConfig], folder: Callable[..., str]
) -> None:
    path = f"{folder()}/tokenizer.model"
    assert open_tokenizer(data_config(tokenizer=path), 290).name.startswith("sentencepiece-")


def test_the_missing_package_is_named_with_its_extra(
    data_config: Callable[..., DataConfig],
    folder: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(DataError, match=r"package sentencepiece.*'\.\[sentencepiece\]'"):
        open_tokenizer(data_config(tokenizer=folder()), 290)
