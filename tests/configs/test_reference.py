"""docs/configuration.md is what the schema says."""

from configs.reference import TARGET, reference


def test_the_page_is_up_to_date():
    assert TARGET.read_text(encoding="utf-8") == reference(), "run python -m configs.reference"
