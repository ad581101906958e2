"""Chat templates render as transformers 5.24.0 rendered them; what it gave is written out here."""

from typing import Any

import pytest

from data import DataError
from data.chat_template import ChatTemplate

MESSAGES = [
    {"role": "user", "content": "hello  wé"},
    {"role": "assistant", "content": "hell 🙂 no"},
    {"role": "user", "content": "x<b>"},
    {"role": "assistant", "content": "user  hello"},
]

CHATML = """\
{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

TAGGED = """\
{% for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {% generation %}
        {{- m.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
"""

INST = """\
{{ bos_token }}{% for m in messages %}\
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must alternate') }}{% endif %}\
{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}\
{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"""

# White space of blocks, loop controls, tojson, nulls left out, the date.
ALL_SORTS = """\
{% if tools %}{{ tools | tojson }}{% endif %}
  {% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
{{ m.role }}: {{ m.content | trim }}{{ m.extra is defined }}
    {% endfor %}{{ strftime_now('%Y') | length }}"""


def template(source: str, date: str = "2024-07-26") -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, date)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            CHATML,
            "<|im_start|>user\nhello  wé<|im_end|>\n<|im_start|>assistant\nhell 🙂 no<|im_end|>\n"
            "<|im_start|>user\nx<b><|im_end|>\n<|im_start|>assistant\nuser  hello<|im_end|>\n",
        ),
        (
            TAGGED,
            "<|im_start|>user\nhello  wé<|im_end|>\n<|im_start|>assistant\n\nhell 🙂 no<|im_end|>\n"
            "<|im_start|>user\nx<b><|im_end|>\n<|im_start|>assistant\n\nuser  hello<|im_end|>\n",
        ),
        (
            INST,
            "<s>[INST] hello  wé [/INST] hell 🙂 no</s>[INST] x<b> [/INST] user  hello</s>",
        ),
    ],
    ids=["chatml", "tagged", "inst"],
)
def test_texts_of_transformers(source: str, expected: str) -> None:
    text, _ = template(source).render(MESSAGES)
    assert text == expected


def test_generation_prompt_of_transformers() -> None:
    text, _ = template(CHATML).render(MESSAGES[:1], add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello  wé<|im_end|>\n<|im_start|>assistant\n"


def test_tools_nulls_and_loop_controls_of_transformers() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "q"},
        {"role": "user", "content": " a<b ", "extra": None},
        {"role": "assistant", "content": "é\n"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "é<&>"}}]
    text, _ = template(ALL_SORTS).render(messages, tools)
    assert text == (
        '[{"type": "function", "function": {"name": "f", "description": "é<&>"}}]'
        "user: a<bFalse\nassistant: éFalse\n4"
    )


def test_generation_tags_give_spans() -> None:
    text, spans = template(TAGGED).render(MESSAGES)
    assert [text[start:stop] for start, stop in spans] == [
        "hell 🙂 no<|im_end|>",
        "user  hello<|im_end|>",
    ]
    assert template(TAGGED).marks_generation
    assert not template(CHATML).marks_generation


def test_the_date_is_the_one_that_is_set() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    assert template(source).render([])[0] == "26 Jul 2024"
    assert template(source, "2031-01-02").render([])[0] == "02 Jan 2031"


def test_reasoning_has_every_name_that_templates_use() -> None:
    source = "{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}{% endfor %}"
    for name in ("reasoning_content", "thinking", "reasoning"):
        assert template(source).render([{"role": "assistant", name: "hm "}])[0] == "hm hm "


def test_a_refusal_of_the_template_is_passed_on() -> None:
    with pytest.raises(DataError, match="refuses the messages: Roles must alternate"):
        template(INST).render(MESSAGES[1:])


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% generation %}", "{% nothing %}"])
def test_what_is_no_template_is_refused(source: str) -> None:
    with pytest.raises(DataError, match="not valid Jinja"):
        template(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages[0].missing.field }}",
        "{{ 1 / 0 }}",
    ],
)
def test_templates_run_in_a_sandbox(source: str) -> None:
    with pytest.raises(DataError, match="refuses the messages"):
        template(source).render([{"role": "user", "content": "x"}])
