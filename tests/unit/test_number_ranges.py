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


def with_few_ranges(numbers: set[int], count: int) -> int:
    """The lowest number from which on the set has at most this many ranges."""
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    return starts[-count] if len(starts) > count else min(numbers, default=0)


@given(st.lists(NUMBERS), st.integers(1, 5))
def test_the_lowest_ranges_can_be_removed_or_merged(added: list[int], count: int) -> None:
    kept, filled, lowest = NumberRanges(), NumberRanges(), with_few_ranges(set(added), count)
    for number in added:
        kept.add(number)
        filled.add(number)
    kept.keep_newest(count)
    assert {number for number in range(50) if number in kept} == {number for number in added if number >= lowest}
    filled.fill_oldest_gaps(count)
    merged = range(min(added, default=0), lowest)
    assert {number for number in range(50) if number in filled} >= set(added)
    assert {number for number in range(50) if number in filled} <= {*added, *merged}
    assert len(filled._starts) == len(filled._ends) == len(kept._starts) <= count


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
