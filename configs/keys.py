"""How a key of the config is declared: a field of a dataclass with one line of documentation."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from typing import Any


def key(doc: str, default: Any = MISSING) -> Any:
    """Declares one config field with its one-line documentation."""
    return field(default=default, metadata={"doc": doc})


def key_fields(section: Any) -> list[Field[Any]]:
    """The fields of a section that are keys or sections of keys: all but `Config.asked`."""
    return [one for one in fields(section) if "doc" in one.metadata]
