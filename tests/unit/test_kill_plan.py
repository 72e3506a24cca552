"""Which kills a kill loop makes, what it feeds, and what it says of what it has found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from twopc.testing.kill_loop import Files, Moment, Outcome, kill_loop
from twopc.testing.kill_loop.kills import ALWAYS_SHOWS, planned
from twopc.testing.kill_loop.records import KafkaTopic

if TYPE_CHECKING:
    from pathlib import Path

GOOD: dict[str, Any] = {
    "seed": 7,
    "given": 4,
    "found": 4,
    "lost": (),
    "duplicated": {},
    "made_up": (),
    "out_of_order": (),
    "kills": ("after@1",),
    "missed": (),
    "seconds": 12.0,
}


def test_the_seed_decides_the_kills() -> None:
    one, same, other = (planned(seed, 20, moments=(), crash_points=()) for seed in (3, 3, 4))
    assert one == same != other
    assert {kill.moment for kill in one} == {*Moment} - {Moment.POINT}


def test_crash_points_come_first_then_the_moments_that_always_show() -> None:
    kills = planned(1, 5, moments=ALWAYS_SHOWS, crash_points=["driver.decided"])
    assert [kill.point for kill in kills] == ["driver.decided", "", "", "", ""]
    assert [kill.moment for kill in kills[:3]] == [Moment.POINT, Moment.AFTER, Moment.DURING]
    assert planned(1, 1, moments=ALWAYS_SHOWS, crash_points=[])[0].moment is Moment.AFTER


def test_files_hold_the_records_in_the_order_that_spark_reads_them(tmp_path: Path) -> None:
    files = Files(tmp_path / "input")
    for numbers in (range(4), range(4, 9)):
        files.feed(numbers)
    paths = sorted((tmp_path / "input").iterdir(), key=lambda path: path.stat().st_mtime)
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    assert [[row["number"] for row in of_file] for of_file in rows] == [[0, 2], [1, 3], [4, 6, 8], [5, 7]]
    assert rows[0][1] == {"number": 2, "key": "key-2", "value": "2"}
    assert files.reader(4).options["maxFilesPerTrigger"] == "2"


def test_a_topic_is_read_in_batches_of_as_many_records() -> None:
    assert KafkaTopic("here:1", "in").reader(25).options["maxOffsetsPerTrigger"] == "25"


def test_a_good_outcome_is_accepted() -> None:
    Outcome(**GOOD).require_exactly_once(in_order=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lost": (3, 1)}, r"2 lost \(3, 1\)"),
        ({"duplicated": {2: 2}}, r"1 duplicated \(2\)"),
        ({"made_up": tuple(range(9))}, r"9 made up \(0, 1, 2, 3, 4, …\)"),
        ({"out_of_order": (2,)}, r"1 out of order \(2\)"),
        ({"kills": ()}, "nothing was killed.*killed never"),
    ],
)
def test_a_bad_outcome_is_refused_with_its_seed(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=f"{said}.*repeat with seed 7"):
        Outcome(**(GOOD | wrong)).require_exactly_once(in_order=True)


def test_order_is_required_when_asked_for_only() -> None:
    Outcome(**(GOOD | {"out_of_order": (2,)})).require_exactly_once()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one of them"),
        ({"query": "m:q", "foreach_batch": "m:f"}, "one of them"),
        ({"query": "m:q", "rows": 11}, "12"),
    ],
)
def test_a_loop_without_a_function_or_with_too_few_rows_is_refused(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        kill_loop(list, directory=tmp_path, **given)
