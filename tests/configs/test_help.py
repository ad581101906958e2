"""--help: two screens that name every group and option, with commands that are accepted."""

import re
import shlex

from configs import load
from configs.compose import groups
from configs.help import help_text

SCREEN = (50, 100)  # rows and columns of a terminal window


def test_help_fits_two_screens():
    lines = help_text(None).splitlines()
    assert len(lines) <= 2 * SCREEN[0]
    assert max(map(len, lines)) <= SCREEN[1]


def test_help_describes_every_group_and_names_every_option():
    text = help_text(None)
    for group, options in groups(None).items():
        assert re.search(rf"^  {group} +(?!your own)\w", text, re.MULTILINE)
        assert all(re.search(rf"\b{option}\b", text) for option in options)


def test_the_commands_of_the_help_are_accepted():
    lines = [line.split() for line in help_text(None).splitlines()]
    commands = [line[2:] for line in lines if line[:2] == ["python", "train.py"] and line[2:]]
    single = [words for words in commands if not words[0].startswith(("-", "["))]
    assert len(commands) == 5  # the bare `python train.py` is one more, the usage line none
    assert all(load(shlex.split(" ".join(words))).mode for words in single)


def test_a_folder_of_ones_own_is_shown(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 3\n")
    assert "mine" in help_text(tmp_path)
