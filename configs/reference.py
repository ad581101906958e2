"""Writes docs/configuration.md from the schema: `python -m configs.reference`."""

from __future__ import annotations

from typing import Any

from configs.compose import HOME, compose, groups
from configs.fields import Leaf, leaves, sections
from configs.ranges import RANGES

TARGET = HOME.parent / "docs" / "configuration.md"

_OPENING = """\
<!-- Written by `python -m configs.reference`; a test compares. Edit configs/*schema.py instead. -->
# Configuration

Every key below is set on the command line, `python train.py train.steps=500 optimizer.lr=1e-3`.
A group swaps a whole set of values, `model=small_25m`; keys that are set win over groups.
Everything is checked before JAX starts: a misspelt key, a wrong value or a broken rule between keys
is refused with exit code 2, all problems at once. With `run.dir=RUN` of an earlier run, keys
that are not set come from RUN/config.yaml.

- Numbers may be written as `1000`, `1e3` or `1000.0`. `010`, `0x10`, `1_000` and `nan` are refused.
- Text is taken as it stands: `data.path=/x/epoch=9.txt`, `run.name=1e3`, `"generate.prompt=a, b"`.
  Under `--multirun` a comma separates values; quotes keep it: `'generate.prompt="a, b",c'`.
- `${oc.env:HOME}` and other OmegaConf interpolations work; quote them for the shell.
- `null` is the absence of a value, where a key may have none.
"""


def reference() -> str:
    """The page: groups with their options, then every key by section."""
    defaults = compose([], None, "config")
    parts = [_OPENING, _groups()]
    for prefix in sections():
        rows = [leaf for leaf in leaves().values() if leaf.key.rpartition(".")[0] == prefix]
        if rows:
            parts.append(_section(prefix, rows, defaults))
    return "\n".join(parts)


def _groups() -> str:
    lines = ["## Groups", "", "| group | options |", "| --- | --- |"]
    lines += [f"| {group} | {', '.join(options)} |" for group, options in groups(None).items()]
    return "\n".join([*lines, ""])


def _section(prefix: str, rows: list[Leaf], defaults: dict[str, Any]) -> str:
    lines = [f"## {prefix or 'General'}", "", "| key | takes | default | meaning |"]
    lines.append("| --- | --- | --- | --- |")
    for leaf in rows:
        value: Any = defaults
        for part in leaf.key.split("."):
            value = value[part]
        lines.append(f"| {leaf.key} | {_takes(leaf)} | `{_shown(value)}` | {_plain(leaf.doc)} |")
    return "\n".join([*lines, ""])


def _takes(leaf: Leaf) -> str:
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    text = ", ".join(leaf.choices) or names[leaf.kind]
    if leaf.key in RANGES:
        text += f" {RANGES[leaf.key]}"
    return f"{text}, or null" if leaf.optional else text


def _plain(doc: str) -> str:
    """Keeps Markdown from reading `<name>` as HTML and `|` as a column."""
    return doc.replace("<", "&lt;").replace("|", "\\|")


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
