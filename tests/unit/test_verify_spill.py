"""Duplicates and gaps found by the spill, compared with a count in memory."""

from __future__ import annotations

import errno
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twopc.errors import ConfigurationError
from twopc.integration.verify import spill
from twopc.integration.verify.spill import EXAMPLES, Place, Spill

if TYPE_CHECKING:
    from pathlib import Path

FIXTURE_IS_SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def count() -> list[int]:
    return [0]


@FIXTURE_IS_SHARED
@given(st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 2))))
def test_every_record_after_the_first_with_its_identity_counts_as_a_duplicate(
    tmp_path: Path, count: list[int], records: list[tuple[bytes, int]]
) -> None:
    count[0] += 1
    seen = Spill(tmp_path / str(count[0]))
    for offset, (identity, topic) in enumerate(records):
        seen.add(identity, topic, 0, offset)
    assert seen.duplicates()[0] == sum(number - 1 for number in Counter(records).values())


@pytest.mark.parametrize("part_rows", [spill._PART_ROWS, 3])
@FIXTURE_IS_SHARED
@given(
    records=st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20)))
)
def test_a_missing_number_between_those_of_the_same_group_counts_as_a_gap(
    tmp_path: Path,
    count: list[int],
    monkeypatch: pytest.MonkeyPatch,
    part_rows: int,
    records: list[tuple[bytes, int]],
) -> None:
    monkeypatch.setattr(spill, "_PART_ROWS", part_rows)
    monkeypatch.setattr(spill, "_SAMPLE_ROWS", 2 * part_rows)
    count[0] += 1
    seen = Spill(tmp_path / str(count[0]))
    for offset, (group, number) in enumerate(records):
        seen.add(group, 0, 0, offset, number)
    expected = 0
    for group in (b"a", b"b"):
        numbers = sorted({number for of, number in records if of == group})
        expected += sum(high - low - 1 for low, high in pairwise(numbers))
    assert seen.gaps()[0] == expected


def test_the_listed_examples_are_few_and_give_the_positions_of_the_records(tmp_path: Path) -> None:
    seen = Spill(tmp_path / "keys")
    for offset in range(2 * EXAMPLES):
        seen.add(b"same", 3, 1, offset)
    count, examples = seen.duplicates()
    assert count == 2 * EXAMPLES - 1
    assert examples == [(Place(3, 1, offset), Place(3, 1, offset + 1)) for offset in range(EXAMPLES)]


def test_an_example_of_a_duplicate_lists_the_earlier_record_first(tmp_path: Path) -> None:
    seen = Spill(tmp_path / "keys")
    for partition, offset in ((1, 4), (0, 9), (1, 2), (0, 7)):
        seen.add(b"same", 0, partition, offset)
    places = [Place(0, 0, 7), Place(0, 0, 9), Place(0, 1, 2), Place(0, 1, 4)]
    assert seen.duplicates()[1] == list(pairwise(places))


def test_entries_that_do_not_fit_into_memory_go_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_BUFFER_ROWS", 10)
    seen = Spill(tmp_path / "keys")
    for offset in range(1000):
        seen.add(b"%d" % (offset % 999), 0, 0, offset)
    assert sum(map(len, seen._buffers)) < 10 * 38
    assert seen.duplicates()[1] == [(Place(0, 0, 0), Place(0, 0, 999))]
    seen.add(b"5", 0, 0, 1000)
    assert seen.duplicates()[0] == 2


def test_a_full_disk_is_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Spill(tmp_path / "keys")
    seen.add(b"a", 0, 0, 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.raises(ConfigurationError, match=r"No space left.*TMPDIR"):
        seen.duplicates()
