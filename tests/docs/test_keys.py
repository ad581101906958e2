"""Keys, options and links that README.md and docs/*.md name are there."""

import re

import pytest

from configs.compose import groups
from configs.fields import leaves, sections
from tests.docs.pages import PAGES, ROOT, commands

FILES = {"model.safetensors"}
MISSPELT = {"lama3_8b"}  # in docs/troubleshooting.md


@pytest.mark.parametrize("page", PAGES)
def test_the_keys_of_a_page_exist(page):
    heads = "|".join({key.split(".")[0] for key in leaves() if "." in key})
    code = " ".join(re.findall(r"`([^`]+)`", (ROOT / page).read_text()))
    named = re.findall(rf"(?<![\w./\[])((?:{heads})\.[a-z_0-9.]*[a-z_0-9])(?!\w|/|\()", code)
    unknown = {key for key in named if not key.endswith((".md", ".py", ".txt", ".log"))}
    assert unknown - set(leaves()) - set(sections()) - FILES == set()


@pytest.mark.parametrize("page", PAGES)
def test_the_options_of_a_page_exist(page):
    typed = [command.text for command in commands(page)]
    text = " ".join([*typed, *re.findall(r"`([^`]+)`", (ROOT / page).read_text())])
    for group, options in groups(None).items():
        for words in re.findall(rf"(?<![\w./]){group}=([\w.,]*\w)", text):
            assert {word for word in words.split(",") if word.islower()} <= {*options, *MISSPELT}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        if path.startswith("http"):
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        assert not heading or heading in _anchors(file.read_text()), target


def _anchors(text):
    """The anchors of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
