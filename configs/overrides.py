"""Command-line overrides: what a user typed, checked and put into words that Hydra reads as meant.

Hydra guesses types from the text, so that `run.name=1e3` becomes a number and
`data.path=/x/epoch=9.txt` a syntax error. The schema knows better: text goes to Hydra in quotes,
numbers in their plain spelling. What is quoted already, and `hydra.*`, passes as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.convert import convert
from configs.errors import RefusedError
from configs.fields import Leaf, below, did_you_mean, leaves, nearest_key, sections
from configs.flags import goes_on, join_spaced

_FORM = re.compile(r"(\+\+|\+|~)?([^=\s~+]+)(?:=(.*))?", re.DOTALL)
_QUOTED = re.compile(r"\s*(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\s*", re.DOTALL)
_SWEEP = re.compile(r"\s*(choice|range|interval|glob|shuffle|sort|tag)\(.*\)\s*", re.DOTALL)


@dataclass(frozen=True)
class Override:
    """One `key=value` of the command line; `sign` is '', '+', '++' or '~'."""

    raw: str
    sign: str
    key: str
    value: str | None

    @property
    def group(self) -> str:
        """The key without a package: `model@draft` -> `model`."""
        return self.key.split("@")[0]

    @property
    def is_hydras(self) -> bool:
        return re.match(r"hydra[./]", self.key) is not None


def parse(raw: str) -> Override:
    """Splits an override at its first `=`; raises RefusedError when there is no key or no value."""
    raw = _as_utf8(raw)
    found = _FORM.fullmatch(raw)
    if raw in leaves():
        raise RefusedError(f"{raw}: a value is missing; {raw}=VALUE")
    if not found or (found[3] is None and found[1] != "~"):
        hint = goes_on(raw) or nearest_key(raw)
        raise RefusedError(f"{raw}: overrides have the form key=value{hint}")
    return Override(raw, found[1] or "", found[2], found[3])


def prepare(
    raws: Sequence[str], groups: Mapping[str, Sequence[str]], *, multirun: bool = False
) -> tuple[list[Override], list[str]]:
    """Returns the overrides that can be composed and one problem for each that cannot.

    `groups` gives the options of every config group. A wrong value of a right key is not a
    problem here: it travels as text, and the conversion to the schema says what is wrong with it.
    """
    good: list[Override] = []
    joined, problems = join_spaced(raws)
    for raw in joined:
        try:
            override = parse(raw)
            _check(override, groups, multirun)
        except RefusedError as refused:
            problems.append(str(refused))
        else:
            good.append(override)
    return good, problems + _doubled(good)


def to_hydra(override: Override, *, multirun: bool = False) -> str:
    """The override as Hydra has to be told: `run.name=1e3` -> `run.name='1e3'`."""
    leaf = leaves().get(override.key)
    if leaf is None or override.value is None:
        return override.raw
    if multirun and _SWEEP.fullmatch(override.value):
        return override.raw
    pieces = split_choices(override.value) if multirun else [override.value]
    value = ",".join(_spell(leaf, piece) for piece in pieces)
    return f"{override.sign}{override.key}={value}"


def assign(key: str, value: Any) -> str:
    """The Hydra override that gives `key` exactly this value."""
    if isinstance(value, str):
        return f"{key}={quote(value)}"
    return f"{key}={'null' if value is None else _plain(value)}"


def with_defaults(overrides: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """The overrides, and those of the defaults whose keys they do not set."""
    given = {override.split("=")[0] for override in overrides}
    return [*overrides, *(d for d in defaults if d.split("=")[0] not in given)]


def quote(text: str) -> str:
    """Puts text in quotes for Hydra, with the backslashes that its grammar asks for."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"


def touched(override: Override) -> list[str]:
    """The keys that an override sets: one, or all of its section or group."""
    return below(override.group)


def is_swept(override: Override) -> bool:
    """True when an override names several values under --multirun."""
    value = override.value or ""
    return len(split_choices(value)) > 1 or _SWEEP.fullmatch(value) is not None


def options(override: Override, *, multirun: bool = False) -> list[str]:
    """The group options that an override names: one, those of a list, or those of a sweep."""
    value = (override.value or "").strip()
    chosen = value.removeprefix("[").removesuffix("]")
    split = multirun or chosen != value
    return [option.strip("'\"") for option in (split_choices(chosen) if split else [chosen])]


def split_choices(value: str) -> list[str]:
    """Splits at the commas that stand outside quotes and brackets: `a,"b,c"` -> a and "b,c"."""
    pieces, depth, inside = [""], 0, ""
    for letter, before in zip(value, f" {value}", strict=False):
        if inside:
            inside = "" if letter == inside and before != "\\" else inside
        elif letter in "'\"":
            inside = letter
        depth += 0 if inside else (letter in "([{") - (letter in ")]}")
        if letter == "," and not inside and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces]


def _check(override: Override, groups: Mapping[str, Sequence[str]], multirun: bool) -> None:
    """Raises RefusedError when the key does not exist, or is used in a way that does nothing."""
    key, sign = override.key, override.sign
    if override.is_hydras:
        return
    if override.group in groups:
        if sign or key != override.group:
            chosen = override.value or groups[override.group][0]
            raise RefusedError(
                f"{sign}{key}: a group is only chosen from; {override.group}={chosen}"
            )
        _check_option(override, groups[override.group], multirun)
        return
    if key not in leaves() and key not in sections():
        hint = goes_on(override.value) or nearest_key(key, groups)
        raise RefusedError(f"{sign}{key}: there is no such key{hint}")
    if sign == "~":
        raise RefusedError(f"~{key}: a key cannot be taken away; set it to another value")
    if sign == "+":
        raise RefusedError(f"+{key}: the key is there already; write {key}={override.value}")


def _check_option(override: Override, known: Sequence[str], multirun: bool) -> None:
    value = override.value
    if value is None or (multirun and _SWEEP.fullmatch(value)) or "${" in value:
        return
    for option in options(override, multirun=multirun):
        if option not in known:
            hint = did_you_mean(option, known)
            raise RefusedError(
                f"{override.group}={option}: there is no such option{hint or ';'} "
                f"{'I' if hint else 'i'}t takes {', '.join(known)}"
            )


def _doubled(overrides: Sequence[Override]) -> list[str]:
    """One problem for every key that is set more than once."""
    by_key: dict[str, list[str]] = {}
    for override in overrides:
        if not override.is_hydras:
            by_key.setdefault(override.key, []).append(override.raw)
    return [
        f"{key} is set {len(raws)} times: {' and '.join(raws)}; keep one"
        for key, raws in by_key.items()
        if len(raws) > 1
    ]


def _spell(leaf: Leaf, value: str) -> str:
    if _QUOTED.fullmatch(value):
        return value
    if value.strip().lower() == "null":
        return "null"
    if leaf.kind is str:
        return quote(value)
    if "${" in value:
        return value
    try:
        return _plain(convert(leaf, value))
    except RefusedError:
        return quote(value)


def _plain(value: bool | int | float | None) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    )


def _as_utf8(raw: str) -> str:
    """Undoes what a C locale does to the bytes of the command line; refuses what is not UTF-8."""
    try:
        return raw.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError:
        shown = raw.encode("utf-8", "backslashreplace").decode("utf-8")
        raise RefusedError(f"{shown}: this is not UTF-8") from None
