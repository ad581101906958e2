"""Every piece of Python in README.md and docs/*.md runs, in the order of its page.

docs/init.md has its own test, at smaller sizes: tests/parallelism/test_init_docs.py.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from parallelism import attention, make_mesh
from tests.docs.pages import PAGES, snippets
from training.metrics import MetricsLog

ELSEWHERE = ("docs/init.md",)
WITH_PYTHON = [page for page in PAGES if page not in ELSEWHERE and snippets(page)]


def _attention() -> dict[str, Any]:
    """Four query and two key/value heads over a sequence of 16 on a mesh with four ranks."""
    query, key = jnp.ones((2, 16, 4, 8)), jnp.ones((2, 16, 2, 8))
    mesh = make_mesh({"data": 2, "context": 4})
    return {"mesh": mesh, "query": query, "key": key, "value": key, "segments": None}


def _compiled_attention(query: Any, key: Any, value: Any, *, segment_ids: Any, **how: Any) -> Any:
    """`attention` as one program: operation by operation it takes ten times as long."""
    call = functools.partial(attention, **how)
    return jax.jit(call)(query, key, value, segment_ids=segment_ids)


def _tokens() -> dict[str, Any]:
    return {"tokens": jnp.ones((1, 8), jnp.int32)}


def _run() -> dict[str, Any]:
    """A run directory `runs/mine` with one step."""
    with MetricsLog(Path("runs/mine"), 0, True) as log:
        log.write(1, {"loss": 2.0})
    return {}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/context_parallelism.md": _attention,
    "docs/models.md": _tokens,
    "docs/runs.md": _run,
}


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs(page, reader, monkeypatch):
    reader(page)
    names = GIVEN.get(page, dict)()
    monkeypatch.setattr("parallelism.attention", _compiled_attention)
    for block in snippets(page):
        source = "\n".join(block.lines)
        for statement in ast.parse(source).body:
            code = ast.get_source_segment(source, statement)
            told = block.lines[statement.end_lineno - 1]
            _run_statement(code, told, names)
    jax.block_until_ready([value for value in names.values() if isinstance(value, jax.Array)])


def _run_statement(code: str, line: str, names: dict[str, Any]) -> None:
    """Runs it; where its comment names an error, that error is raised and says the numbers."""
    raised = re.search(r"# (\w+Error): (.*)", line)
    if raised is None:
        exec(code, names)
        return
    with pytest.raises(eval(raised[1])) as error:
        exec(code, names)
    assert set(re.findall(r"\d+", raised[2])) <= set(re.findall(r"\d+", str(error.value)))


def test_every_page_is_looked_at():
    assert set(GIVEN) <= set(WITH_PYTHON)
    assert all(snippets(page) for page in ELSEWHERE)
