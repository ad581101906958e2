"""XLA's CPU programs without what only makes them fast to run: they compile in a fifth of the time.

A folder of tests whose subject is what is computed has in its conftest.py

    compiles_quickly = quick_compile.fixture(but=("test_compiled_step",))

`but` names the modules whose subject is the compiled program: collectives, memory, the cache. What
runs in a process of its own is compiled as users have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import pytest
from jax._src import compiler

QUICK_COMPILE = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):  # the XLA of JAX 0.12 knows no other way to emit fusions
    QUICK_COMPILE["xla_cpu_use_fusion_emitters"] = False


@contextmanager
def quick_compile() -> Iterator[None]:
    """Within it, programs for CPUs are compiled with QUICK_COMPILE, or as they say themselves."""
    plain = compiler.get_compile_options

    def quick(*sizes: Any, **others: Any) -> Any:
        backend = others.get("backend")
        if backend is not None and backend.platform == "cpu":
            given = others.get("env_options_overrides") or {}
            others["env_options_overrides"] = {**QUICK_COMPILE, **given}
        return plain(*sizes, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", quick)
        yield


def fixture(but: Sequence[str] = ()) -> Callable[..., Iterator[None]]:
    """A fixture that has every module of the folder compile quickly, but those named."""

    @pytest.fixture(scope="module", autouse=True)
    def compiles_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
        if request.path.stem in but:
            yield
            return
        with quick_compile():
            yield

    return compiles_quickly
