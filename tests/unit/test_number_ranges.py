"""A set of mostly consecutive numbers behaves like a set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twopc.integration.spark.number_ranges import NumberRanges

NUMBERS = st.integers(0, 40)


@given(st.lists(NUMBERS), NUMBERS, NUMBERS)
def test_ranges_contain_exactly_the_numbers_that_were_added(added: list[int], start: int, end: int) -> None:
    ranges = NumberRanges()
    for number in added:
        ranges.add(number)
    assert {number for number in range(50) if number in ranges} == set(added)
    assert list(ranges.missing(start, end)) == [number for number in range(start, end) if number not in added]


@given(st.lists(NUMBERS), NUMBERS)
def test_lower_numbers_can_be_dropped(added: list[int], before: int) -> None:
    ranges = NumberRanges()
    for number in added:
        ranges.add(number)
    ranges.drop_before(before)
    assert {number for number in range(50) if number in ranges} == {number for number in added if number >= before}
    ranges.add(before)
    assert before in ranges


@given(st.lists(NUMBERS))
def test_adjacent_numbers_share_a_range_whatever_their_order(added: list[int]) -> None:
    ranges = NumberRanges()
    for number in added:
        ranges.add(number)
    gaps = sum(number - 1 not in added for number in set(added))
    assert len(ranges._starts) == len(ranges._ends) == gaps


def test_the_missing_numbers_may_be_added_while_they_are_read() -> None:
    ranges = NumberRanges()
    ranges.add(3)
    seen = []
    for number in ranges.missing(0, 6):
        seen.append(number)
        ranges.add(number)
    assert seen == [0, 1, 2, 4, 5]
    assert list(ranges.missing(0, 6)) == []
