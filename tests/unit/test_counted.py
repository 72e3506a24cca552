"""Numbers and their nouns in messages."""

import pytest

from twopc.counted import counted


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (2_000, ("row",), "2,000 rows"),
        (1, ("query", "queries"), "1 query"),
        (3, ("query", "queries"), "3 queries"),
        (1, ("offset is", "offsets are"), "1 offset is"),
    ],
)
def test_a_number_is_followed_by_the_right_form_of_its_noun(number: int, noun: tuple[str, ...], said: str) -> None:
    assert counted(number, *noun) == said
