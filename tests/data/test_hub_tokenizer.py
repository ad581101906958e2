"""Tokenizers from tokenizer.json: BOS and EOS, added tokens, and text that spells special ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from configs.schema import DataConfig
from data import DataError, Dataset, open_data, open_tokenizer

WORDS = {"a": 0, "b": 1, "c": 2, "[UNK]": 3, "<s>": 4, "</s>": 5}
BOS, EOS = 4, 5


def word_tokenizer(post_processor: str | None = None, **words: int) -> Tokenizer:
    """Whole words as tokens; the post-processor is a template such as `<s> $A </s>`."""
    tokenizer = Tokenizer(models.WordLevel(WORDS | words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(word) for word in ("<s>", "</s>", "[UNK]")])
    if post_processor:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=post_processor, special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    return tokenizer


@pytest.fixture
def open_documents(
    data_config: Callable[..., DataConfig],
    text_folder: Callable[..., str],
    tokenizer_folder: Callable[..., str],
) -> Callable[..., Dataset]:
    """Opens two documents, `a` and `b`, packed in one row of 8."""

    def make(tokenizer: Tokenizer, eos_token: str | None = None, **files: Any) -> Dataset:
        config = data_config(
            path=text_folder({"0": b"a", "1": b"b a"}),
            tokenizer=tokenizer_folder(tokenizer, **files),
            eos_token=eos_token,
        )
        return open_data(config, "train", 64)

    return make


@pytest.mark.parametrize(
    ("post_processor", "bos"),
    [(None, []), ("$A", []), ("$A </s>", []), ("<s> $A", [BOS]), ("<s> $A </s>", [BOS])],
)
def test_every_document_has_one_eos_and_the_bos_of_its_tokenizer(
    open_documents: Callable[..., Dataset], post_processor: str | None, bos: list[int]
) -> None:
    dataset = open_documents(word_tokenizer(post_processor))
    batch = dataset.batch(0)
    used = batch["segment_ids"][0] > 0
    assert batch["tokens"][0][used].tolist() == [*bos, 1, 0, EOS, *bos, 0, EOS]
    assert dataset.stats.documents == 2
    assert list(dataset.tokenizer.prefix) == bos


@pytest.mark.parametrize(
    ("added", "expected"), [(True, [BOS]), (False, [])], ids=["asked for", "declined"]
)
def test_add_bos_token_outranks_the_post_processor(
    open_documents: Callable[..., Dataset], added: bool, expected: list[int]
) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": added}
    tokenizer = word_tokenizer("$A" if added else "<s> $A")
    dataset = open_documents(tokenizer, tokenizer_config=config)
    assert list(dataset.tokenizer.prefix) == expected


def test_a_tokenizer_without_eos_is_refused(open_documents: Callable[..., Dataset]) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="b"))
    with pytest.raises(DataError) as error:
        open_documents(tokenizer)
    for part in ("data.tokenizer=", "tokenizer.json has no eos token", "data.eos_token=TOKEN"):
        assert part in str(error.value)
    assert open_documents(tokenizer, eos_token="<end>").tokenizer.eos_id == 2
    with pytest.raises(DataError, match=r"data\.eos_token=<x>: the vocabulary of 3 tokens has no"):
        open_documents(tokenizer, eos_token="<x>")


def test_where_the_eos_token_is_looked_for(open_documents: Callable[..., Dataset]) -> None:
    tokenizer = word_tokenizer("$A </s>", x=6, y=7, z=8)
    cases: list[tuple[str | None, dict[str, Any], int]] = [
        (None, {}, EOS),
        (None, {"config": {"eos_token_id": 6}}, 6),
        (None, {"config": {"eos_token_id": 6}, "generation_config": {"eos_token_id": [7, 5]}}, 7),
        (None, {"special_tokens_map": {"eos_token": {"content": "z"}}}, 8),
        (None, {"tokenizer_config": {"eos_token": "x"}}, 6),
        ("y", {}, 7),
    ]
    for chosen, files, expected in cases:
        assert open_documents(tokenizer, chosen, **files).tokenizer.eos_id == expected


def test_several_possible_names_of_eos_are_refused(open_documents: Callable[..., Dataset]) -> None:
    tokenizer = word_tokenizer(None, **{"<|endoftext|>": 6})
    with pytest.raises(DataError, match=r"has </s> and <\|endoftext\|>; data\.eos_token=</s>"):
        open_documents(tokenizer)


def test_generation_stops_at_every_end_that_is_named(
    open_documents: Callable[..., Dataset],
) -> None:
    files = {"tokenizer_config": {"eos_token": "</s>"}, "generation_config": {"eos_token_id": [3]}}
    assert open_documents(word_tokenizer(), **files).tokenizer.stop_ids == {3, EOS}


def test_added_tokens_count_for_the_vocabulary(
    data_config: Callable[..., DataConfig],
    text_folder: Callable[..., str],
    tokenizer_folder: Callable[..., str],
) -> None:
    words = {f"w{i}": i for i in range(63)} | {"</s>": 63}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.add_tokens(["more"])
    tokenizer.add_special_tokens(["<pad>"])
    config = data_config(path=text_folder({"a": b"w1 more"}), tokenizer=tokenizer_folder(tokenizer))
    with pytest.raises(DataError) as error:
        open_data(config, "train", 64)
    for part in ("data.tokenizer=", "token id 65", "model.vocab_size=64", "66 or more"):
        assert part in str(error.value)
    assert open_data(config, "train", 72).tokenizer.vocab_size == 66


def test_truncation_and_padding_of_the_file_are_off(
    open_documents: Callable[..., Dataset],
) -> None:
    tokenizer = word_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=4)
    assert open_documents(tokenizer).tokenizer.encode("a b c a b") == [0, 1, 2, 0, 1]


def test_text_that_spells_a_special_token_stays_text(
    data_config: Callable[..., DataConfig],
    toy_tokenizer: Callable[..., Tokenizer],
    tokenizer_folder: Callable[..., str],
) -> None:
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=40, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>",
        show_progress=False,
    )  # fmt: skip
    unigram.train_from_iterator(["a b </s> < / s > c"] * 9, trainer)
    for made in (toy_tokenizer(), word_tokenizer(), unigram):
        config = data_config(tokenizer=tokenizer_folder(made))
        tokenizer = open_tokenizer(config, 512)
        ids = tokenizer.encode("a </s> b</s>")
        assert made.token_to_id("</s>") == tokenizer.eos_id
        assert tokenizer.eos_id not in ids
        assert len(ids) > 4


def test_toy_tokens_by_hand(
    data_config: Callable[..., DataConfig],
    toy_tokenizer: Callable[..., Tokenizer],
    tokenizer_folder: Callable[..., str],
) -> None:
    config = data_config(tokenizer=tokenizer_folder(toy_tokenizer()))
    tokenizer = open_tokenizer(config, 512)
    # `hello`, ` w`, the two bytes of `é` (the 127th and the 102nd of the byte alphabet).
    assert tokenizer.encode("hello wé") == [259, 260, 127, 102]
    assert tokenizer.decode([265, 259, 260, 127, 102, 266]) == "hello wé"
    assert tokenizer.eos_id == 266


def test_the_name_follows_the_contents(
    data_config: Callable[..., DataConfig],
    toy_tokenizer: Callable[..., Tokenizer],
    tokenizer_folder: Callable[..., str],
) -> None:
    folders = [
        tokenizer_folder(toy_tokenizer(), "one"),
        tokenizer_folder(toy_tokenizer(), "same"),
        tokenizer_folder(toy_tokenizer(["<s>", "</s>"]), "other"),
    ]
    one, same, other = (open_tokenizer(data_config(tokenizer=f), 512).name for f in folders)
    assert one == same != other
    assert " " not in one


def test_what_is_no_tokenizer_is_refused(
    data_config: Callable[..., DataConfig], tmp_path: Path
) -> None:
    (tmp_path / "text.json").write_text("[1]")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "bad.model").write_text("these are no pieces")
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "vocab.json").write_text("{}")
    for path, reason in [
        ("nowhere", "no such file or folder"),
        ("text.json", "is no tokenizer.json"),
        ("config.json", "is no tokenizer.json"),
        ("bad.model", "is no SentencePiece model"),
        ("slow", "the folder holds no tokenizer: none of tokenizer.json"),
    ]:
        with pytest.raises(DataError, match=rf"(?s)data\.tokenizer=.*{path}: .*{reason}"):
            open_tokenizer(data_config(tokenizer=str(tmp_path / path)), 512)


def test_a_broken_file_beside_the_tokenizer_is_named(
    data_config: Callable[..., DataConfig],
    toy_tokenizer: Callable[..., Tokenizer],
    tokenizer_folder: Callable[..., str],
) -> None:
    folder = tokenizer_folder(toy_tokenizer())
    (Path(folder) / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config\.json is not JSON"):
        open_tokenizer(data_config(tokenizer=folder), 512)


def test_a_missing_package_is_named_with_its_extra(
    data_config: Callable[..., DataConfig],
    toy_tokenizer: Callable[..., Tokenizer],
    tokenizer_folder: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tokenizer_folder(toy_tokenizer())
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"needs the package tokenizers.*pip install -e '\.\[hf\]'"):
        open_tokenizer(data_config(tokenizer=folder), 512)


def test_a_word_that_the_tokenizer_fails_on_is_named(
    data_config: Callable[..., DataConfig],
    text_folder: Callable[..., str],
    tokenizer_folder: Callable[..., str],
) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="[UNK]"))
    config = data_config(
        path=text_folder({"good": b"a", "odd": b"zebra"}), tokenizer=tokenizer_folder(tokenizer)
    )
    with pytest.raises(DataError, match=r"data\.path=.*: odd: the tokenizer failed: .*UNK"):
        open_data(config, "train", 64)
