"""Conversations in records: {"messages"} or {"prompt", "completion"}, checked and alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from data.documents import DataError
from data.records import Place, Record, json_type

ASSISTANT = "assistant"


class Conversation(NamedTuple):
    """Messages, of which those of the assistant from `first_scored` on are to be learned."""

    place: Place
    messages: Sequence[Mapping[str, Any]]
    first_scored: int
    tools: Any

    def scored(self) -> list[int]:
        """The numbers of the messages to be learned."""
        rest = range(self.first_scored, len(self.messages))
        return [i for i in rest if self.messages[i]["role"] == ASSISTANT]


def conversation_of(record: Record) -> Conversation:
    """Reads a record; prompt and completion are texts, or lists of messages.

    Raises DataError, naming place and field, for any other form and for a conversation in which
    there is nothing to learn.
    """
    fields, place = record.fields, record.place
    if "messages" in fields:
        messages, first_scored = _messages(fields["messages"], "messages", place), 0
    elif "prompt" in fields and "completion" in fields:
        prompt = _turns(fields["prompt"], "prompt", "user", place)
        completion = _turns(fields["completion"], "completion", ASSISTANT, place)
        messages, first_scored = [*prompt, *completion], len(prompt)
    else:
        raise DataError(
            f"{place}: data.source=chat needs the field messages, or prompt and completion; the "
            f"fields are {', '.join(map(str, fields)) or 'none'}"
        )
    conversation = Conversation(place, messages, first_scored, fields.get("tools") or None)
    if not conversation.scored():
        raise DataError(f"{place}: there is no message of the role assistant, so nothing to learn")
    return conversation


def content_text(message: Mapping[str, Any], place: Place) -> str:
    """The text of a message whose content is a text, or a list of {"type": "text", "text"}."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts) or not texts:
        raise DataError(
            f"{place}: the content of a message is {json_type(content)}; without a chat template "
            "it must be text"
        )
    return "".join(map(str, texts))


def _turns(value: Any, field: str, role: str, place: Place) -> Sequence[Mapping[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _messages(value, field, place)


def _messages(value: Any, field: str, place: Place) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        what = "no message" if value == [] else json_type(value)
        raise DataError(f"{place}: the field {field!r} holds {what}; it takes a list of messages")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(
                f"{place}: message {number} of {field!r} must be an object with role and content, "
                f"as {{'role': 'user', 'content': '...'}}"
            )
    return value
