"""Conversations through a chat template: what of the text is scored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from data import DataError, Dataset

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# As Qwen3: thoughts are written for turns after the last question only.
FORGETFUL = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}:"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}({{ m.thinking }}){% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


def say(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]}


def row(dataset: Dataset, step: int = 0) -> tuple[list[int], list[int]]:
    """The tokens of a row, and its scored targets in their places, 0 elsewhere."""
    batch = dataset.batch(step)
    used = batch["segment_ids"][0] > 0
    scored = batch["targets"][0] * (batch["weights"][0] > 0)
    return batch["tokens"][0][used].tolist(), scored[used].tolist()


def learned(dataset: Dataset, tokenizer: Tokenizer) -> list[str]:
    """The text of the scored targets, a row each, special tokens written out."""
    texts = []
    for step in range(dataset.num_batches or 0):
        _, targets = row(dataset, step)
        texts.append(tokenizer.decode([t for t in targets if t], skip_special_tokens=False))
    return texts


def test_tokens_and_mask_of_transformers(
    open_chat: Callable[..., Dataset], chat_tokenizer: Callable[..., str]
) -> None:
    # apply_chat_template(..., return_assistant_tokens_mask=True) of transformers 5.24.0, for the
    # same tokenizer and a template with generation tags around content and <|im_end|>.
    ids = [
        267, 264, 198, 259, 220, 260, 127, 102, 268, 198, 267, 64, 82, 82, 72, 82, 83, 64, 77, 83,
        198, 198, 258, 220, 172, 253, 247, 224, 220, 77, 78, 268, 198, 267, 264, 198, 87, 27, 65,
        29, 268, 198, 267, 64, 82, 82, 72, 82, 83, 64, 77, 83, 198, 198, 264, 220, 220, 259, 268,
        198,
    ]  # fmt: skip
    mask = [0] * 22 + [1] * 10 + [0] * 22 + [1] * 5 + [0]
    template = CHATML.replace("m.content + '<|im_end|>\\n' }}", "'' }}")
    template = template.replace(
        "{% endfor %}",
        "{% if m.role == 'assistant' %}{{ '\\n' }}{% generation %}{{ m.content }}<|im_end|>"
        "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}",
        1,
    )
    record = say("hello  wé", "hell 🙂 no", "x<b>", "user  hello")
    dataset = open_chat(record, tokenizer=chat_tokenizer(template), seq_len=64)
    tokens, scored = row(dataset)
    assert tokens == ids
    assert [int(target > 0) for target in scored] == [*mask[1:], 0]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "hell<|im_end|>user  hello<|im_end|>"),
        # No generation prompt: the space that the assistant begins with is its own.
        (INST, " hell</s> user  hello</s>"),
        # No end of turn and no special token: EOS is put at the end.
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}",
            " hell\n user  hello\n</s>",
        ),
        # A header that no generation prompt announces is not learned.
        (
            "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}",
            "hell<|im_end|>user  hello<|im_end|>",
        ),
    ],
    ids=["chatml", "inst", "plain", "headers"],
)
def test_without_tags_what_a_turn_adds_is_scored(
    open_chat: Callable[..., Dataset],
    chat_tokenizer: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
    template: str,
    expected: str,
) -> None:
    record = say("hello wé", "hell", "x<b>", "user  hello")
    dataset = open_chat(record, tokenizer=chat_tokenizer(template), seq_len=128)
    assert learned(dataset, toy_tokenizer()) == [expected]


def test_a_template_that_forgets_makes_a_document_of_every_turn(
    open_chat: Callable[..., Dataset],
    chat_tokenizer: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
) -> None:
    messages = say("q", "a", "p", "b")["messages"]
    messages[1]["thinking"], messages[3]["thinking"] = "one", "two"
    dataset = open_chat({"messages": messages}, tokenizer=chat_tokenizer(FORGETFUL), seq_len=40)
    assert dataset.stats.documents == 2
    assert sorted(learned(dataset, toy_tokenizer())) == [
        "(one)a<|im_end|>",
        "(two)b<|im_end|>",
    ]


def test_prompt_and_completion_are_turns_where_there_is_a_template(
    open_chat: Callable[..., Dataset],
    chat_tokenizer: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
) -> None:
    folder = chat_tokenizer(CHATML)
    pair, turns = {"prompt": "hello", "completion": "hell"}, say("hello", "hell")
    rows = [row(open_chat(record, tokenizer=folder)) for record in (pair, turns)]
    assert rows[0] == rows[1]


def test_only_the_completion_of_message_lists_is_scored(
    open_chat: Callable[..., Dataset],
    chat_tokenizer: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
) -> None:
    *prompt, last = say("q", "hell", "p", "hello")["messages"]
    dataset = open_chat(
        {"prompt": prompt, "completion": [last]}, tokenizer=chat_tokenizer(CHATML), seq_len=64
    )
    assert learned(dataset, toy_tokenizer()) == ["hello<|im_end|>"]


def test_a_template_file_outranks_the_tokenizers(
    open_chat: Callable[..., Dataset],
    chat_tokenizer: Callable[..., str],
    toy_tokenizer: Callable[..., Tokenizer],
    tmp_path: Path,
) -> None:
    (tmp_path / "own.jinja").write_text(INST)
    fields = {"tokenizer": chat_tokenizer(CHATML), "chat_template": str(tmp_path / "own.jinja")}
    assert learned(open_chat(say("q", "hell"), **fields), toy_tokenizer()) == [" hell</s>"]
    (Path(fields["tokenizer"]) / "chat_template.jinja").write_text(INST)
    del fields["chat_template"]
    assert learned(open_chat(say("q", "hell"), **fields), toy_tokenizer()) == [" hell</s>"]


def test_what_a_template_refuses_is_named_with_its_line(
    open_chat: Callable[..., Dataset], chat_tokenizer: Callable[..., str]
) -> None:
    template = "{% if messages|length > 2 %}{{ raise_exception('too long') }}{% endif %}x"
    with pytest.raises(DataError, match=r"chat\.jsonl:1: the chat template refuses .*: too long"):
        open_chat(say("a", "b", "c", "d"), tokenizer=chat_tokenizer(template))
