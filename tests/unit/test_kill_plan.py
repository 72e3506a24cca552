"""The kill loop's plan of kills, its input, and its verdict."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from twopc.integration.services import ServiceError
from twopc.testing.kill_loop import Files, Kill, Moment, Outcome, Victim, kill_loop
from twopc.testing.kill_loop.connect import require_connect
from twopc.testing.kill_loop.hold import end_of, release
from twopc.testing.kill_loop.kills import ALWAYS_SHOWS, OF_CONNECT, aimed, planned
from twopc.testing.kill_loop.moments import HeldFunction
from twopc.testing.kill_loop.records import KafkaTopic

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

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
    assert {kill.moment for kill in one} == {*Moment} - {Moment.POINT, Moment.OUTSIDE}


def test_crash_points_come_before_the_moments_that_always_reveal_a_bug() -> None:
    kills = planned(1, 5, moments=ALWAYS_SHOWS, crash_points=["driver.decided"])
    assert [kill.point for kill in kills] == ["driver.decided", "", "", "", ""]
    assert [kill.moment for kill in kills[:3]] == [Moment.POINT, Moment.AFTER, Moment.DURING]
    assert planned(1, 1, moments=ALWAYS_SHOWS, crash_points=[])[0].moment is Moment.AFTER


def test_under_connect_the_victims_take_turns_and_a_kill_in_a_task_keeps_the_default_victim() -> None:
    moments = [Moment.AFTER] * 5
    plan = planned(1, 6, moments=moments, crash_points=["task.prepared"])
    kills = aimed(plan, OF_CONNECT)
    assert [kill.victim for kill in kills] == [Victim.ALL, *OF_CONNECT, Victim.WORKER]
    assert set(OF_CONNECT) == set(Victim)
    assert [str(kill).partition(" ")[2] for kill in kills] == ["", "(worker)", "(server)", "(client)", "", "(worker)"]
    assert all(kill.victim is Victim.ALL for kill in plan)


def test_spark_reads_the_input_files_in_the_order_in_which_they_were_fed(tmp_path: Path) -> None:
    files = Files(tmp_path / "input")
    for numbers in (range(4), range(4, 9)):
        files.feed(numbers)
    paths = sorted((tmp_path / "input").iterdir(), key=lambda path: path.stat().st_mtime)
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    assert [[row["number"] for row in of_file] for of_file in rows] == [[0, 2], [1, 3], [4, 6, 8], [5, 7]]
    assert rows[0][1] == {"number": 2, "key": "key-2", "value": "2"}
    assert files.reader(4).options["maxFilesPerTrigger"] == "2"


def test_a_topic_is_read_in_batches_of_the_given_size() -> None:
    assert KafkaTopic("here:1", "in").reader(25).options["maxOffsetsPerTrigger"] == "25"


def test_an_outcome_without_errors_passes() -> None:
    Outcome(**GOOD).require_exactly_once(in_order=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lost": (3, 1)}, r"2 lost \(3, 1\)"),
        ({"duplicated": {2: 2}}, r"1 duplicated \(2\)"),
        ({"made_up": tuple(range(9))}, r"9 made up \(0, 1, 2, 3, 4, …\)"),
        ({"out_of_order": (2,)}, r"1 row out of order \(2\)"),
        ({"kills": ()}, "no kill happened.*killed never"),
        (
            {"kills": ("during",), "missed": ("after@2", "before@1")},
            "kill 'after' never came.*not reached: after@2, before@1",
        ),
        ({"missed": ("during (server)",)}, "kill 'during' never came"),
        (
            {"kills": ("driver.decided@1",), "missed": ("driver.committed@1 (client)",)},
            "kill 'driver.committed' never came.*crash points that every run",
        ),
    ],
)
def test_an_outcome_with_an_error_fails_with_a_message_that_contains_the_seed(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=f"{said}.*repeat with seed 7"):
        Outcome(**(GOOD | wrong)).require_exactly_once(in_order=True)


def test_a_kill_may_be_missed_if_it_is_random_or_came_at_a_later_try() -> None:
    kills = ("after (commits/3 deleted)", "during (worker)", "driver.decided@1")
    missed = ("after@1", "during", "before@2", "random+0.50s", "outside@3", "driver.decided@1 (server)")
    Outcome(**(GOOD | {"kills": kills, "missed": missed})).require_exactly_once()


def test_the_order_of_rows_is_checked_only_on_request() -> None:
    Outcome(**(GOOD | {"out_of_order": (2,)})).require_exactly_once()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "exactly one of"),
        ({"query": "m:q", "foreach_batch": "m:f"}, "exactly one of"),
        ({"query": "m:q", "rows": 11}, "12"),
        ({"query": "m:q", "victims": [Victim.CLIENT]}, "needs connect=True"),
    ],
)
def test_kill_loop_refuses_invalid_combinations_of_arguments(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        kill_loop(list, directory=tmp_path, **given)


def test_an_older_spark_and_a_missing_package_are_rejected_with_errors_that_identify_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    with pytest.raises(ServiceError, match=r"needs PySpark 4\.0 or newer, but this is 3\.5\.9"):
        require_connect()
    monkeypatch.setattr("pyspark.__version__", "4.0.5")
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    with pytest.raises(ServiceError, match=r"pip install 'spark-twopc\[connect\]'"):
        require_connect()


def held(moment: Moment, reached: Path, calls: list[int]) -> HeldFunction:
    kill = Kill(moment=moment, passage=2, point="driver.decided" if moment is Moment.POINT else "")

    def function(frame: Any, batch_id: int) -> None:
        del frame
        calls.append(batch_id)
        assert batch_id < 3, "the last batch fails"

    return HeldFunction(function, kill, str(reached))


@pytest.mark.parametrize(("moment", "before"), [(Moment.BEFORE, [1]), (Moment.AFTER, [1, 2])])
def test_a_function_pauses_in_the_batch_of_its_kill_until_it_is_released(
    moment: Moment, before: list[int], tmp_path: Path
) -> None:
    reached, calls = tmp_path / "reached", list[int]()
    function: Any = held(moment, reached, calls)
    function(None, 1)
    assert not reached.exists()
    end_of(str(reached)).unlink()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(function, None, 2)
        while not reached.exists():
            assert not second.done()
        assert calls == before
        assert not end_of(str(reached)).exists()
        release(str(reached))
        second.result(timeout=10)
    assert calls == [1, 2]
    assert end_of(str(reached)).read_text() == "no error"


def test_the_error_of_a_held_function_is_recorded(tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    function: Any = held(Moment.RANDOM, reached, [])
    with pytest.raises(AssertionError, match="the last batch fails"):
        function(None, 3)
    assert end_of(str(reached)).read_text() == "AssertionError"


def test_the_first_call_of_a_held_function_arms_its_process(tmp_path: Path, crash_points: ModuleType) -> None:
    reached = tmp_path / "reached"
    function: Any = held(Moment.POINT, reached, [])
    function(None, 1)
    assert crash_points.is_armed("driver.decided")
