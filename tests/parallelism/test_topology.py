"""topology_devices without libtpu; with it, test_reorder_tpu.py compiles for real topologies."""

import importlib.util

import pytest

from parallelism.topology import topology_devices


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"topology=v5p:2x2x1.*libtpu.*foldtext\[tpu-aot\]"):
        topology_devices("v5p:2x2x1")
