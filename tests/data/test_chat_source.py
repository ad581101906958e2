"""Conversations: which tokens are scored, and that the weight of each goes through packing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer

from configs.schema import DataConfig
from data import DataError, Dataset, open_data

EOS = 256


def say(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]}


def row(dataset: Dataset, step: int = 0) -> tuple[list[int], list[int]]:
    """The tokens of a row, and its scored targets in their places, 0 elsewhere."""
    batch = dataset.batch(step)
    used = batch["segment_ids"][0] > 0
    scored = batch["targets"][0] * (batch["weights"][0] > 0)
    return batch["tokens"][0][used].tolist(), scored[used].tolist()


def test_prompt_and_completion_of_bytes_by_hand(open_chat: Callable[..., Dataset]) -> None:
    tokens, scored = row(open_chat({"prompt": "ab", "completion": "cd"}))
    assert tokens == [97, 98, 99, 100, EOS]
    assert scored == [0, 99, 100, EOS, 0]


def test_messages_of_bytes_by_hand(open_chat: Callable[..., Dataset]) -> None:
    tokens, scored = row(open_chat(say("a", "b", "cd", "é")))
    assert tokens == [97, 98, EOS, 99, 100, 195, 169, EOS]
    assert scored == [98, EOS, 0, 0, 195, 169, EOS, 0]


def test_weights_go_through_packing_by_hand(open_chat: Callable[..., Dataset]) -> None:
    records = [{"prompt": "abc", "completion": "d"}, {"prompt": "e", "completion": "f"}]
    batch = open_chat(*records, seq_len=10).batch(0)
    assert batch["tokens"][0].tolist() == [97, 98, 99, 100, EOS, 101, 102, EOS, 0, 0]
    assert batch["targets"][0].tolist() == [98, 99, 100, EOS, 0, 102, EOS, 0, 0, 0]
    assert batch["weights"][0].tolist() == [0, 0, 1, 1, 0, 1, 1, 0, 0, 0]
    assert batch["segment_ids"][0].tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 0, 0]
    assert batch["positions"][0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 0]


def test_weights_go_through_joining_by_hand(open_chat: Callable[..., Dataset]) -> None:
    records = [{"prompt": "abc", "completion": "d"}, {"prompt": "e", "completion": "f"}]
    dataset = open_chat(*records, seq_len=4, pack=False)
    rows = {}
    for step in range(2):
        batch = dataset.batch(step)
        rows[batch["tokens"][0, 0]] = batch
    assert rows[97]["tokens"][0].tolist() == [97, 98, 99, 100]
    assert rows[97]["weights"][0].tolist() == [0, 0, 1, 1]
    assert rows[EOS]["tokens"][0].tolist() == [EOS, 101, 102, 0]
    assert rows[EOS]["targets"][0].tolist() == [101, 102, EOS, 0]
    assert rows[EOS]["weights"][0].tolist() == [0, 1, 1, 0]


def test_a_conversation_longer_than_a_row_keeps_its_weights(
    open_chat: Callable[..., Dataset],
) -> None:
    record = {"prompt": "p" * 20, "completion": "".join(map(chr, range(97, 97 + 20)))}
    dataset = open_chat(record, seq_len=8)
    scored = [target for step in range(6) for target in row(dataset, step)[1] if target]
    assert sorted(scored) == [*range(97, 97 + 20), EOS]


def test_the_tokenizers_prefix_without_a_template(
    open_chat: Callable[..., Dataset],
    tokenizer_folder: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
) -> None:
    folder = tokenizer_folder(
        toy_tokenizer(), tokenizer_config={"bos_token": "<s>", "add_bos_token": True}
    )
    tokens, scored = row(open_chat({"prompt": "hello", "completion": " w"}, tokenizer=folder))
    assert tokens == [265, 259, 260, 266]
    assert scored == [0, 260, 266, 0]


def test_a_token_across_the_border_is_scored(
    open_chat: Callable[..., Dataset], chat_tokenizer: Callable[..., str]
) -> None:
    record = {"prompt": "xus", "completion": "er"}  # `user` is one token
    tokens, scored = row(open_chat(record, tokenizer=chat_tokenizer(None)))
    assert tokens == [87, 264, 266]
    assert scored == [264, 266, 0]


def test_conversations_in_parquet(data_config: Callable[..., DataConfig], tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist([say("a", "b")]), tmp_path / "a.parquet")
    config = data_config(source="chat", path=str(tmp_path / "a.parquet"))
    assert row(open_data(config, "train", 257)) == ([97, 98, EOS], [98, EOS, 0])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "x"}, "needs the field messages, or prompt and completion; the fields are text"),
        ({"prompt": "x"}, "the fields are prompt"),
        ({"prompt": "x", "completion": 3}, "'completion' holds a number; it takes a list of mess"),
        ({"messages": "x"}, "the field 'messages' holds text; it takes a list"),
        ({"messages": []}, "the field 'messages' holds no message"),
        ({"messages": [{"content": "x"}]}, "message 0 of 'messages' must be an object with role"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no message of the role assistant"),
        (
            {"messages": [{"role": "assistant", "content": None}]},
            "the content of a message is null; without a chat template it must be text",
        ),
    ],
)
def test_malformed_conversations_are_refused_with_their_line(
    open_chat: Callable[..., Dataset], record: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=rf"data\.path=.*chat\.jsonl:2: .*{reason}"):
        open_chat(say("a", "b"), record)


def test_eval_holds_out_whole_conversations(open_chat: Callable[..., Dataset]) -> None:
    dataset = open_chat(*(say(chr(97 + i), "x") for i in range(20)), eval_fraction=0.25)
    assert dataset.stats.documents == 15
    weights = np.concatenate([dataset.batch(i)["weights"][0] for i in range(2)])
    assert weights.sum() == 15 * 2
