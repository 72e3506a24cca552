"""Whether a Delta table still shows a batch after it was restored, perhaps more than once."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from twopc.sinks.delta.history import complete_decisions, read_history, rows_by_version, version_of_batch

if TYPE_CHECKING:
    from pathlib import Path


def history(*restores: dict[str, Any]) -> list[dict[str, Any]]:
    """Versions 0 to 3 add a batch each, a version per second. Later versions restore the table, the last one is the newest."""
    batches: list[dict[str, Any]] = [
        {"operation": "WRITE", "twopc.sink": "s", "twopc.batch": batch} for batch in range(4)
    ]
    commits: list[dict[str, Any]] = [
        *batches,
        *({"operation": "RESTORE", "operationParameters": to} for to in restores),
    ]
    return [{"version": at, "timestamp": at * 1000, **commit} for at, commit in enumerate(commits)][::-1]


def to(version: int) -> dict[str, Any]:
    return {"version": str(version)}


def spark_time(at_ms: int) -> str:
    return f'"{datetime.fromtimestamp(at_ms / 1000)}"'  # noqa: DTZ006 - Spark writes its local time


@pytest.mark.parametrize(
    ("restores", "restored"),
    [
        ([], None),
        ([to(1)], 4),
        ([to(3)], None),
        ([to(1), to(3)], None),  # undone
        ([to(1), to(4)], 4),  # to the state after the first restore
        ([to(1), to(3), to(4)], 4),
        ([to(1), to(3), to(5)], None),
        ([to(3), to(1)], 5),
        ([{"datetime": "3500"}], None),  # to a time after the batch
        ([{"datetime": "2999"}], 4),
        ([{"version": "null", "timestamp": spark_time(3500)}], None),
        ([{"version": "null", "timestamp": spark_time(2999)}], 4),
        ([{"version": None, "timestamp": "yesterday"}], 4),
        ([to(1), {"datetime": "3500"}], None),
        ([to(1), {"datetime": "4500"}], 4),
    ],
)
def test_the_origin_of_the_newest_state_is_found_through_any_restores(
    restores: list[Any], restored: int | None
) -> None:
    found = version_of_batch(history(*restores), "s", 3)
    assert found is not None and found == (3, restored)


def test_a_batch_after_a_restore_is_in_the_table() -> None:
    after = {"version": 5, "timestamp": 5000, "operation": "WRITE", "twopc.sink": "s", "twopc.batch": 4}
    assert version_of_batch([after, *history(to(1))], "s", 4) == (5, None)


def test_the_restored_batch_is_found_in_the_history_that_deltalake_writes(tmp_path: Path) -> None:
    for batch in range(3):
        said = CommitProperties(custom_metadata={"twopc.sink": "s", "twopc.batch": str(batch)})
        write_deltalake(str(tmp_path), pa.table({"x": [1]}), mode="append", commit_properties=said)

    def restored() -> int | None:
        found = version_of_batch(read_history(DeltaTable(str(tmp_path))), "s", 2)
        assert found is not None
        return found.restored

    def set_time(version: int, at_ms: int) -> None:
        """delta-rs looks at the files' times."""
        os.utime(tmp_path / "_delta_log" / f"{version:020}.json", ns=(at_ms * 1_000_000,) * 2)

    for commit in read_history(DeltaTable(str(tmp_path))):
        set_time(commit["version"], commit["timestamp"])
    DeltaTable(str(tmp_path)).restore(0)
    assert restored() == 3
    added_ms = read_history(DeltaTable(str(tmp_path)))[1]["timestamp"]
    set_time(3, added_ms + 1)  # both commits may have the same time
    DeltaTable(str(tmp_path)).restore(datetime.fromtimestamp(added_ms / 1000, timezone.utc))
    assert restored() is None
    DeltaTable(str(tmp_path)).restore(3)
    assert restored() == 3


def test_a_decision_is_complete_if_the_log_still_contains_a_version_from_before_its_first_commit() -> None:
    """A repaired decision has two commits. The log's clean-up removes the oldest versions."""
    versions = enumerate([6, 7, 7, 8])
    commits = [{"version": at, "twopc.sink": "s", "twopc.version": one, "twopc.rows": 5} for at, one in versions][::-1]
    other = {"version": 4, "twopc.sink": "t", "twopc.version": 1, "twopc.rows": 5}

    def found(kept: int) -> tuple[dict[int, int], set[int]]:
        kept_commits = [other, *commits[:kept]]
        return dict(rows_by_version(kept_commits, "s")), set(complete_decisions(kept_commits, "s"))

    assert found(4) == ({6: 5, 7: 10, 8: 5}, {6, 7, 8})
    assert found(3) == ({7: 10, 8: 5}, {8})
    assert found(2) == ({7: 5, 8: 5}, {8})
    assert found(0) == ({}, set())
