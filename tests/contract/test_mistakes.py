"""The published suite notices plausible mistakes by a sink's author. Each mistake is planted in the guide's sink."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract import cases, guide
from twopc.attempt import Evidence
from twopc.fenced_committer import Prepared
from twopc.testing.contract import Case, SinkContract

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    import pyarrow as pa

    from twopc.attempt import TaskAttempt

Patch = pytest.MonkeyPatch


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    return cases.guide(request)


def _insert(db: sqlite3.Connection, name: str, rows: pa.RecordBatch, columns: list[str]) -> None:
    values = zip(*(rows.column(column).to_pylist() for column in columns), strict=True)
    db.executemany("INSERT INTO twopc_staged VALUES (?, ?, ?)", ((name, *row) for row in values))


def _votes_by_state_only(patch: Patch) -> None:
    def is_prepared(_: Any, step: sqlite3.Connection, handle: Prepared) -> bool:
        return bool(guide.state_of(step, handle.transaction) == "prepared")  # type: ignore[attr-defined]

    patch.setattr(guide.SqliteCommitter, "is_prepared", is_prepared)  # type: ignore[attr-defined]


def the_last_write_replaces_the_others(patch: Patch) -> None:
    def write(writer: Any, rows: pa.RecordBatch) -> None:
        with writer._sink.step() as db:
            db.execute("DELETE FROM twopc_staged WHERE name = ?", (writer._name,))
            _insert(db, writer._name, rows, ["customer", "cents"])

    patch.setattr(guide.SqliteWriter, "write", write)  # type: ignore[attr-defined]
    _votes_by_state_only(patch)


def the_name_comes_from_the_task_attempt(patch: Patch) -> None:
    def init(writer: Any, sink: Any, task: TaskAttempt) -> None:
        digest = hashlib.sha256(repr(task).encode()).hexdigest()[:32]
        writer._sink, writer._name = sink, f"{sink.name}-{task.driver_epoch}-{digest}"

    def begin(writer: Any) -> None:
        with writer._sink.step() as db:
            values = (writer._name, writer._sink.name)
            db.execute("INSERT OR IGNORE INTO twopc_transactions (name, sink, state) VALUES (?, ?, 'open')", values)

    patch.setattr(guide.SqliteWriter, "__init__", init)  # type: ignore[attr-defined]
    patch.setattr(guide.SqliteWriter, "begin_transaction", begin)  # type: ignore[attr-defined]
    _votes_by_state_only(patch)


def columns_are_read_by_position(patch: Patch) -> None:
    def write(writer: Any, rows: pa.RecordBatch) -> None:
        with writer._sink.step() as db:
            _insert(db, writer._name, rows, rows.schema.names)

    patch.setattr(guide.SqliteWriter, "write", write)  # type: ignore[attr-defined]


def a_commit_writes_a_missing_marker(patch: Patch) -> None:
    def publish(committer: Any, step: sqlite3.Connection, handle: Prepared, version: int) -> None:
        upsert = (
            "INSERT INTO twopc_transactions VALUES (?, ?, ?, 'committed') ON CONFLICT (name) "
            "DO UPDATE SET state = 'committed', version = excluded.version WHERE state = 'prepared'"
        )
        if step.execute(upsert, (handle.transaction, committer.name, version)).rowcount:
            name = (handle.transaction,)
            step.execute("INSERT INTO payments SELECT customer, cents FROM twopc_staged WHERE name = ?", name)
            step.execute("DELETE FROM twopc_staged WHERE name = ?", name)

    patch.setattr(guide.SqliteCommitter, "publish", publish)  # type: ignore[attr-defined]


def a_missing_marker_counts_as_committed(patch: Patch) -> None:
    def outcome(_: Any, step: sqlite3.Connection, handle: Prepared) -> Evidence:
        state = guide.state_of(step, handle.transaction) or "committed"  # type: ignore[attr-defined]
        return guide.PROOFS.get(state, Evidence.UNKNOWN)  # type: ignore[attr-defined,no-any-return]

    patch.setattr(guide.SqliteCommitter, "outcome", outcome)  # type: ignore[attr-defined]


def a_swept_task_votes(patch: Patch) -> None:
    def pre_commit(writer: Any) -> Prepared:
        with writer._sink.step() as db:
            db.execute("UPDATE twopc_transactions SET state = 'prepared' WHERE name = ?", (writer._name,))
        return Prepared(writer._name, writer.rows)

    patch.setattr(guide.SqliteWriter, "pre_commit", pre_commit)  # type: ignore[attr-defined]
    _votes_by_state_only(patch)


def the_destination_is_the_transaction(patch: Patch) -> None:
    def destinations_of(_: Any, handle: Prepared) -> set[str]:
        return {handle.transaction}

    patch.setattr(guide.SqliteSink, "destinations_of", destinations_of)


_SUITE = SinkContract()


@pytest.mark.parametrize(
    ("mistake", "test"),
    [
        (the_last_write_replaces_the_others, _SUITE.test_the_rows_of_every_write_become_visible),
        (
            the_name_comes_from_the_task_attempt,
            _SUITE.test_a_killed_task_and_its_retry_have_identical_task_attempts_and_write_their_rows_once,
        ),
        (columns_are_read_by_position, _SUITE.test_a_tasks_columns_may_be_in_any_order),
        (
            a_commit_writes_a_missing_marker,
            _SUITE.test_a_transaction_without_a_record_in_the_store_is_not_reported_as_committed,
        ),
        (
            a_missing_marker_counts_as_committed,
            _SUITE.test_a_transaction_without_a_record_in_the_store_is_not_reported_as_committed,
        ),
        (the_destination_is_the_transaction, _SUITE.test_all_attempts_at_the_same_rows_write_to_the_same_places),
        (a_swept_task_votes, _SUITE.test_a_swept_task_that_votes_late_is_refused_or_has_all_its_rows),
    ],
)
def test_the_suite_detects_each_mistake(
    mistake: Callable[[Patch], None], test: Callable[[Case], None], case: Case, monkeypatch: Patch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        test(case)
