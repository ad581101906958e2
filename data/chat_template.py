"""Chat templates: Jinja, as transformers renders it.

Source: https://huggingface.co/docs/transformers/chat_templating and _chat_template_writing.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from data.documents import DataError
from data.extras import need

Message = Mapping[str, Any]
Span = tuple[int, int]
"""Characters start..stop-1."""

# Noncharacters of Unicode, which no text has: they mark what is inside {% generation %}.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_GENERATION = re.compile(r"{%[-+]?\s*generation\s*[-+]?%}")


class ChatTemplate:
    """A compiled template. Raises DataError for one that is no Jinja, and without jinja2."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], date: str) -> None:
        """`date`, as 2024-07-26, is what the template takes for today."""
        self.marks_generation = _GENERATION.search(source) is not None
        self._special_tokens = special_tokens
        self._jinja = need("jinja2", "hf", "a chat template")
        try:
            self._template = _environment(date).from_string(source)
        except self._jinja.TemplateError as error:
            raise DataError(f"the chat template is not valid Jinja: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        add_generation_prompt: bool = False,
    ) -> tuple[str, list[Span]]:
        """The text of a conversation and, in it, the spans inside {% generation %}.

        Raises DataError with the reason where the template refuses the messages.
        """
        variables = {
            **self._special_tokens,
            "messages": [_plain(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            marked = self._template.render(variables)
        except Exception as error:  # a template can fail in any way
            raise DataError(f"the chat template refuses the messages: {error}") from error
        return _unmarked(marked)


def _plain(message: Message) -> dict[str, Any]:
    """A message without its nulls, and with its reasoning under each name that templates use."""
    plain = {key: value for key, value in message.items() if value is not None}
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((plain[name] for name in names if name in plain), None)
    if reasoning is None:
        return plain
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _environment(date: str) -> Any:
    sandbox = need("jinja2.sandbox", "hf", "a chat template")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _generation_tag()],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    today = datetime.datetime.fromisoformat(date)
    environment.globals["strftime_now"] = today.strftime
    return environment


def _generation_tag() -> Any:
    """The Jinja extension for {% generation %}: it puts marks around what is inside."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_marked")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return _OPEN + caller() + _CLOSE

    return GenerationTag


def _unmarked(marked: str) -> tuple[str, list[Span]]:
    """`ab<cd>e` -> (`abcde`, [(2, 4)]) for the marks < and >."""
    parts, spans, at, start = [], [], 0, 0
    for part in re.split(f"([{_OPEN}{_CLOSE}])", marked):
        if part == _OPEN:
            start = at
        elif part == _CLOSE:
            spans.append((start, at))
        else:
            parts.append(part)
            at += len(part)
    return "".join(parts), spans


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter writes HTML escapes; models were trained on plain JSON."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
