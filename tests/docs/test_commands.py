"""Every command of README.md and docs/*.md is run, in the order of its page."""

import pytest

from tests.docs.claims import way_of
from tests.docs.pages import PAGES, commands


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page, reader):
    reader(page)
    for command in commands(page):
        try:
            way_of(command)(command)
        except Exception as error:
            error.add_note(str(command))
            raise
