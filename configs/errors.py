"""How the user is told that a configuration is refused."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """A refused configuration; `problems` holds every reason, one readable line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))

    def report(self) -> str:
        """The text that the terminal and the log show."""
        count = len(self.problems)
        heading = "1 problem" if count == 1 else f"{count} problems"
        lines = [f"  - {problem}" for problem in self.problems]
        return "\n".join([f"The configuration is refused: {heading}.", *lines])


class RefusedError(ValueError):
    """One value or override that cannot be used; the message says the rule and a way out."""
