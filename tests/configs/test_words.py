"""One thing, several things."""

from configs.words import counted


def test_one_is_singular_and_all_else_plural():
    assert [counted(n, "row") for n in (0, 1, 2, 28979)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "28,979 rows",
    ]
