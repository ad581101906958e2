"""Conversations as tokens, with weight on what the assistant says and on nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from data.chat_template import ChatTemplate, Span
from data.conversations import ASSISTANT, Conversation, content_text, conversation_of
from data.documents import DataError
from data.records import Record
from data.store import StoreWriter
from data.texts import without_surrogates
from data.tokenizer import TextTokenizer
from data.tokenizing import Progress


class Tokens(NamedTuple):
    """A document: ids, and whether each is to be learned, [tokens] each."""

    ids: np.ndarray
    scored: np.ndarray


def write_conversations(
    records: Iterable[Record],
    tokenizer: TextTokenizer,
    template: ChatTemplate | None,
    writer: StoreWriter,
) -> int:
    """Writes every conversation; returns how many were left out as they score no token.

    Raises DataError, with the place, for a record of another form and where the template refuses.
    """
    empty, progress = 0, Progress("tokens")
    for record in records:
        conversation = conversation_of(record)
        for tokens in conversation_tokens(conversation, tokenizer, template):
            if not tokens.scored[1:].any():
                empty += 1
                continue
            writer.append(*tokens)
            writer.end_document(conversation.place)
            progress.add(1, len(tokens.ids))
    return empty


def conversation_tokens(
    conversation: Conversation, tokenizer: TextTokenizer, template: ChatTemplate | None
) -> list[Tokens]:
    """The documents of a conversation.

    With a template: its text, tokenized as it is, scored inside {% generation %} or, without such
    tags, where the assistant's turns make it longer (`_by_prefixes`). Without one: what is said,
    end to end, EOS after each turn of the assistant, whose content and EOS are scored.
    """
    if template is None:
        return [_without_template(conversation, tokenizer)]
    try:
        rendered = list(_render(conversation, template))
    except DataError as error:
        raise DataError(f"{conversation.place}: {error}") from error
    return [_tokenized(text, spans, tokenizer) for text, spans in rendered]


def _render(conversation: Conversation, template: ChatTemplate) -> Iterator[tuple[str, list[Span]]]:
    """Texts of a conversation, each with its scored spans.

    Mostly one. A template that writes an earlier turn otherwise once others follow (Qwen3 drops
    its thoughts) has a text for every turn of the assistant, as the model would have seen it.
    """
    messages, tools = conversation.messages, conversation.tools
    text, spans = template.render(messages, tools)
    scored = conversation.scored()
    if template.marks_generation:
        turns = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]
        if len(spans) == len(turns):
            spans = [span for i, span in zip(turns, spans, strict=True) if i in scored]
        yield text, spans
        return
    turns_alone = [_turn_alone(conversation, template, i) for i in scored]
    if all(text.startswith(upto.rstrip()) for upto, _ in turns_alone):
        yield text, [span for _, span in turns_alone]
    else:
        yield from ((upto, [span]) for upto, span in turns_alone)


def _turn_alone(conversation: Conversation, template: ChatTemplate, turn: int) -> tuple[str, Span]:
    """The text up to and with a turn of the assistant, and what of it the turn adds.

    It begins where the generation prompt ends, or where the two part, and ends with the turn, but
    for white space after the mark that ends it: `<|im_end|>` is learned, the line feed is not.
    """
    messages, tools = conversation.messages, conversation.tools
    text, _ = template.render(messages[: turn + 1], tools)
    content = messages[turn].get("content")
    said = content.strip() if isinstance(content, str) else ""
    before = template.render(messages[:turn], tools)[0] if turn else ""
    prompted = template.render(messages[:turn], tools, True)[0] if turn else ""
    start = _common_prefix(text, prompted)
    if start < len(before.rstrip()):
        raise DataError(
            f"the chat template writes the messages before number {turn} otherwise when that "
            "follows, so what it adds cannot be told; {% generation %} tags would mark it"
        )
    if prompted == before:  # no generation prompt: a header, not only a space, may come first
        at = max(start, text.find(said, start))
        start = at if text[start:at].strip() else start
    after = max(start, text.rfind(said, start) + len(said)) if said else start
    stop = len(text.rstrip() if text[after:].strip() else text)
    return text, (start, stop)


def _common_prefix(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _tokenized(text: str, spans: list[Span], tokenizer: TextTokenizer) -> Tokens:
    """Tokens of a rendered text; EOS at its end where no special token ends the last turn."""
    text = without_surrogates(text)
    tokens = tokenizer.encode_marked(text)
    scored = np.zeros(len(tokens.ids), bool)
    for start, stop in spans:
        scored |= tokens.overlapping(start, stop)
    last_start, last_stop = spans[-1] if spans else (0, 0)
    closing = tokens.ids[tokens.stops > last_start]
    if any(int(i) in tokenizer.special_ids for i in closing):
        return Tokens(tokens.ids, scored)
    ends_scored = last_stop >= len(text.rstrip())
    return Tokens(np.append(tokens.ids, tokenizer.eos_id), np.append(scored, ends_scored))


def _without_template(conversation: Conversation, tokenizer: TextTokenizer) -> Tokens:
    scored = conversation.scored()
    parts = [Tokens(np.array(tokenizer.prefix, np.int64), np.zeros(len(tokenizer.prefix), bool))]
    said = ""
    for number, message in enumerate(conversation.messages):
        start = len(said)
        said += without_surrogates(content_text(message, conversation.place))
        if message["role"] == ASSISTANT:
            parts.append(_run(said, start, number in scored, tokenizer))
            said = ""
    return Tokens(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _run(text: str, start: int, is_scored: bool, tokenizer: TextTokenizer) -> Tokens:
    """Text whose characters from `start` on the assistant says, and EOS."""
    tokens = tokenizer.encode_marked(text)
    scored = tokens.overlapping(start, len(text)) & is_scored
    return Tokens(np.append(tokens.ids, tokenizer.eos_id), np.append(scored, is_scored))
