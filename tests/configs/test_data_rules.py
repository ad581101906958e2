"""Rules on the data: keys that the source does not read, and files that are not there."""

import pytest

from configs import ConfigError, load


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("data=jsonl", ["data.path=null", "data.source=jsonl", "data.path=PATH"]),
        ("data=tokens data.path=/no/file.bin", ["data.path=/no/file.bin", "no such file"]),
        ("data=huggingface", ["data.path=null", "data.source=huggingface"]),
        ("data=huggingface data.hub_name=a/b data.path=/tmp", ["data.hub_name=a/b", "null"]),
        ("data.hub_name=a/b", ["data.hub_name=a/b", "stdlib", "data=huggingface"]),
        ("data=synthetic data.tokenizer=/tmp", ["data.tokenizer=/tmp", "synthetic"]),
        ("data.tokenizer=/no/tokenizer", ["data.tokenizer=/no/tokenizer", "no such file"]),
        ("data.eos_token=</s>", ["data.eos_token=</s>", "without data.tokenizer"]),
        ("data=jsonl data.path=/tmp data.text_field=null", ["data.text_field=null", "field"]),
        ("data.chat_template=/tmp", ["data.chat_template=/tmp", "data=chat"]),
        (
            "data=chat data.path=/tmp data.chat_template=/no.jinja",
            ["data.chat_template=/no.jinja", "no such file"],
        ),
        ("data=chat data.path=/tmp data.chat_date=today", ["data.chat_date=today", "2024-07-26"]),
        ("data=jsonl data.path=/tmp model.vocab_size=64", ["model.vocab_size=64", "257"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_rule_has_its_own_problem(overrides, parts):
    with pytest.raises(ConfigError) as refused:
        load(overrides.split())
    (problem,) = refused.value.problems
    for part in parts:
        assert part in problem


@pytest.mark.parametrize(
    "overrides",
    [
        "data=huggingface data.hub_name=a/b",
        "data=jsonl data.path=/tmp/*.jsonl",
        "data=tokens data.path=/tmp data.eos_token=3 model.vocab_size=64",
        "data=arrayrecord data.path=/tmp data.text_field=null",
        "data=jsonl data.path=/tmp data.tokenizer=/tmp data.eos_token=</s> model.vocab_size=64",
    ],
)
def test_what_the_rules_allow(overrides):
    load(overrides.split())


def test_paths_come_back_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tokenizer", "template"):
        (tmp_path / name).touch()
    data = load(
        ["data=chat", "data.path=.", "data.tokenizer=tokenizer", "data.chat_template=template",
         "data.token_cache=cache"]
    ).data  # fmt: skip
    assert data.tokenizer == str(tmp_path / "tokenizer")
    assert data.chat_template == str(tmp_path / "template")
    assert data.token_cache == str(tmp_path / "cache")
