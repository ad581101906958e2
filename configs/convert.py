"""Strict conversion: plain values (from YAML) and raw text (from the command line) to typed ones.

Text is read as a person would: `1e3` is the whole number 1000, `2.0` is 2. What a person could
read in two ways is refused, with the plain spelling in the message: `010`, `0x10`, `1_000`.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from configs.errors import RefusedError
from configs.fields import Leaf, did_you_mean, leaves, nearest_key, sections
from configs.keys import key_fields
from configs.schema import Config

_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_LARGEST = 2**63  # what an int64 holds; no key wants more


def from_tree(tree: Mapping[str, Any]) -> tuple[Config, dict[str, str]]:
    """Builds the typed config from a nested mapping, and one problem by key for what is wrong.

    A refused key holds None in the returned config, so that the rules on all other keys can
    still be checked.
    """
    problems: dict[str, str] = {}
    config = _section("", tree, problems)
    return config, problems


def convert(leaf: Leaf, value: Any) -> Any:
    """Returns `value` in the type of its key; raises RefusedError with the rule and a way out."""
    if value is None or (leaf.kind is not str and _is_null(value)):
        if leaf.optional:
            return None
        raise RefusedError(f"null is not allowed; {_wanted(leaf)}")
    if isinstance(value, str) and not value.strip():
        raise RefusedError(f"the value is empty; {_wanted(leaf)}" + leaf.optional * ", or null")
    if isinstance(value, (Mapping, list, tuple)):
        raise RefusedError(f"takes one value; {_wanted(leaf)}")
    return _READERS[leaf.kind](leaf, value)


def _section(prefix: str, tree: Any, problems: dict[str, str]) -> Any:
    section = sections()[prefix]
    path = f"{prefix}." if prefix else ""
    if not isinstance(tree, Mapping):
        problems[prefix] = f"{prefix}={tree}: this is a section; set the keys below it"
        tree = {}
    values: dict[str, Any] = {}
    for field in key_fields(section):
        key = f"{path}{field.name}"
        if key in sections():
            values[field.name] = _section(key, tree.get(field.name, {}), problems)
        elif field.name not in tree:
            problems[key] = f"{key} is missing; {_wanted(leaves()[key])}"
            values[field.name] = None
        else:
            values[field.name] = _leaf(leaves()[key], tree[field.name], problems)
    for name in tree.keys() - {field.name for field in key_fields(section)}:
        key = f"{path}{name}"
        problems[key] = f"{key}: there is no such key{nearest_key(key)}"
    return section(**values)


def _leaf(leaf: Leaf, value: Any, problems: dict[str, str]) -> Any:
    if isinstance(value, RefusedError):
        problems[leaf.key] = f"{leaf.key}: {value}"
        return None
    try:
        return convert(leaf, value)
    except RefusedError as refused:
        shown = "null" if value is None else value
        problems[leaf.key] = f"{leaf.key}={shown}: {refused}"
        return None


def _is_null(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() == "null"


def _wanted(leaf: Leaf) -> str:
    if leaf.choices:
        return f"one of {', '.join(leaf.choices)}"
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return f"it takes {names[leaf.kind]}"


def _text(leaf: Leaf, value: Any) -> str:
    if not isinstance(value, str):
        raise RefusedError(f"{_wanted(leaf)}; quote it in the YAML")
    if leaf.choices and value not in leaf.choices:
        raise RefusedError(f"{_wanted(leaf)}{did_you_mean(value, leaf.choices)}")
    return value


def _bool(leaf: Leaf, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise RefusedError(_wanted(leaf))


def _number(leaf: Leaf, value: Any) -> Decimal:
    """The exact value of a YAML number or of text that is written as one."""
    if isinstance(value, bool):
        raise RefusedError(_wanted(leaf))
    text = value.strip() if isinstance(value, str) else repr(value)
    if "," in text:
        raise RefusedError(f"{_wanted(leaf)}; several values need --multirun")
    if not _NUMBER.fullmatch(text) or not re.search(r"[0-9]", re.split("[eE]", text)[0]):
        raise RefusedError(f"{_wanted(leaf)}{_plain_spelling(text)}")
    try:
        return Decimal(text)
    except ArithmeticError:  # an exponent of twenty digits
        raise RefusedError(f"{_wanted(leaf)}; this one has no end") from None


def _int(leaf: Leaf, value: Any) -> int:
    number = _number(leaf, value)
    if abs(number) >= _LARGEST:
        raise RefusedError(f"too large; {_wanted(leaf)} below 2**63")
    if number != number.to_integral_value():
        below = math.floor(number)
        raise RefusedError(f"{_wanted(leaf)}; {below} or {below + 1} would do")
    return int(number)


def _float(leaf: Leaf, value: Any) -> float:
    number = float(_number(leaf, value))
    if not math.isfinite(number):
        raise RefusedError("too large for a number")
    return number


def _plain_spelling(text: str) -> str:
    """`; write 16` for text that Python, C or YAML would read as a number, else nothing."""
    if re.fullmatch(r"[+-]?(inf|nan)(inity)?", text, re.IGNORECASE):
        return ", and a finite one"
    plain = text.replace("_", "")
    for read in (lambda: int(plain, 0), lambda: int(plain), lambda: float(plain)):
        try:
            return f"; write {read()}"
        except (ValueError, OverflowError):
            continue
    return ""


_READERS: dict[type, typing.Callable[[Leaf, Any], Any]] = {
    str: _text,
    bool: _bool,
    int: _int,
    float: _float,
}
