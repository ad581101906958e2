"""config.yaml reads back equal, whatever the text in it looks like."""

from dataclasses import replace

import pytest
import yaml

from configs import ConfigError, load
from configs.saved import read_config, write_config


@pytest.mark.parametrize(
    "prompt",
    [
        "1e3",
        "2024_01_01",
        "null",
        "~",
        "true",
        "a: b",
        "#x",
        " x ",
        "a\tb\nc",
        "ü\u2028\x07",
        "${x}",
        "=",
        "0x1f",
        "1:30",
        "-",
        "'\"\\",
        "x" * 3000,
    ],
)
def test_a_saved_config_reads_back_equal(prompt, tmp_path):
    config = load(["optimizer.lr=1.2345678901234567e-5", "mesh.simulate=4", "data.epochs=2"])
    config = replace(config, generate=replace(config.generate, prompt=prompt))
    write_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path / "config.yaml") == config
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_a_saved_config_is_plain_yaml(tmp_path):
    write_config(load(["run.name=1e3", "optimizer.lr=1e-5"]), tmp_path / "config.yaml")
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (tree["run"]["name"], tree["optimizer"]["lr"]) == ("1e3", 1e-5)
    assert tree["optimizer"]["clip_norm"] == 1.0
    assert tree["data"]["path"] is None
    assert '"1e3"' in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("text", ["", "- 1", "model: 3", "a: [", "train: {steps: 1}", "typo: 1"])
def test_another_file_is_refused_by_name(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        read_config(tmp_path / "config.yaml")
