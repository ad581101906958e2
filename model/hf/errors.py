"""What is refused on the way in and out of Hugging Face folders."""

from __future__ import annotations

from typing import Any


class HFError(ValueError):
    """The folder, its config.json or its tensors cannot become a model, or a model cannot become
    one; the message names the key or the file."""


class Fields:
    """A config.json of which every key must be read, or known to have no effect."""

    def __init__(self, values: dict[str, Any], defaults: Any) -> None:
        self._values, self._defaults = values, defaults
        self._read: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, `a|b` being two names of one; null counts as left out."""
        names = key.split("|")
        self._read.update(names)
        given = [self._values[n] for n in names if self._values.get(n) is not None]
        return given[0] if given else self._defaults.get(key, default)

    def need(self, key: str) -> Any:
        """The value of a key that has to be there."""
        value = self.take(key)
        if value is None:
            raise HFError(f"config.json: {key} is missing")
        return value

    def expect(self, key: str, wanted: Any) -> None:
        """Refuses a value other than `wanted` or none at all."""
        value = self.take(key)
        if value is not None and value != wanted:
            raise HFError(f"config.json: {key}={value!r} is not supported; {wanted!r} is")

    def finish(self, ignored: frozenset[str]) -> None:
        """Refuses keys that nobody has read, unless they are ignored or switch something off."""
        left = {
            key: value
            for key, value in self._values.items()
            if key not in self._read and key not in ignored and value not in (None, False)
        }
        if left:
            named = ", ".join(f"{key}={value!r}" for key, value in left.items())
            raise HFError(
                f"config.json: {named}: not known for this family, and may change what the model "
                "computes; remove what has no effect"
            )
