"""mode=compile without libtpu: what is refused, and what the sums and verdicts are."""

import importlib.util
from types import SimpleNamespace

import pytest

from configs import ConfigError
from tests.training.small import small_config
from training.compile_only import verdict
from training.compile_report import bytes_held
from training.modes import run


def test_a_topology_without_libtpu_is_refused_with_the_extra_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = small_config("mode=compile", "mesh.topology=v5p:2x2x1")
    with pytest.raises(ConfigError, match=r"mesh\.topology=v5p:2x2x1.*foldtext\[tpu-aot\]"):
        run(config)


def test_the_devices_that_are_here_can_be_compiled_for(capsys, tmp_path):
    config = small_config("mode=compile", f"run.dir={tmp_path / 'run'}", "mesh.context=2")
    assert run(config) == 0
    said = capsys.readouterr().out
    assert "context=2 tensor=1: 8 cpu devices" in said
    assert "arguments" in said
    assert "collective-permute" in said
    assert "GiB a device" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("topology", "num_devices"), [("v5p:2x2x1", 4), ("v4:2x2x1", 8)])
def test_a_plan_counts_the_devices_of_a_topology_without_libtpu(
    topology, num_devices, capsys, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(small_config("mode=plan", f"mesh.topology={topology}")) == 0
    assert f"on {num_devices} devices: data=1 fsdp={num_devices} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (15 * 2**30, "fits: 15.0 of 16.0 GiB a device, 93.8%"),
        (20 * 2**30, "does not fit: 20.0 of 16.0 GiB a device, 125.0%"),
    ],
)
def test_the_need_is_compared_with_the_memory_of_a_device(held, said):
    assert verdict(held, 16 * 2**30) == said
    assert verdict(held, None) == f"{held / 2**30:.1f} GiB a device"


def test_memory_that_outputs_reuse_counts_once():
    sizes = {"argument": 100, "output": 90, "alias": 80, "temp": 7, "generated_code": 2}
    stats = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
    executable = SimpleNamespace(memory_analysis=lambda: stats)
    assert bytes_held(executable) == 100 + (90 - 80) + 7 + 2
