"""What the tests of runs share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests import quick_compile

compiles_quickly = quick_compile.fixture(
    but=(
        "test_compile_cache",
        "test_compile_only",
        "test_compiled_step",
    )
)


@pytest.fixture(scope="session", autouse=True)
def _background_ends() -> Iterator[None]:
    """Waits for compiles that a refused run left behind: Python cannot end in the midst of XLA."""
    yield
    for thread in threading.enumerate():
        if thread.name == "background":
            thread.join()
