"""compile_cache: a damaged entry costs one compilation, not one in every run."""

from __future__ import annotations

import logging
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from training.compile_cache import remove_damaged, share_compiled_programs


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """An empty cache directory in use, as in a run: warnings go to the log."""
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    share_compiled_programs(tmp_path)
    reset_cache()
    logging.captureWarnings(True)
    yield tmp_path
    logging.captureWarnings(False)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    jax.config.update("jax_compilation_cache_dir", None)
    reset_cache()


def _compile() -> None:
    jax.jit(lambda x: jnp.sin(x) * 3).lower(jax.ShapeDtypeStruct((8,), "float32")).compile()


@pytest.mark.parametrize("kept_bytes", [0, 100])
def test_an_entry_cut_short_is_written_anew(
    kept_bytes: int, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _compile()
    (entry,) = cache.glob("*-cache")
    entry.write_bytes(entry.read_bytes()[:kept_bytes])
    jax.clear_caches()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        _compile()
    assert entry.stat().st_size > 500
    assert remove_damaged(cache) == []
    assert f"compile_cache={cache}: removed 1 damaged entry, compiling anew" in caplog.text
    caplog.clear()
    jax.clear_caches()
    _compile()
    assert not caplog.records


def test_what_is_whole_or_no_entry_stays(tmp_path: Path) -> None:
    data = zlib.compress(b"program" * 1000)
    (tmp_path / "whole-cache").write_bytes(data)
    (tmp_path / "notes").write_bytes(b"")
    (tmp_path / "short-cache").write_bytes(data[:-1])
    assert remove_damaged(tmp_path) == [tmp_path / "short-cache"]
    assert {path.name for path in tmp_path.iterdir()} == {"whole-cache", "notes"}
