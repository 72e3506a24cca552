"""The count over many checks is complete as long as no check missed a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from tests.unit.test_log_view import BEGIN, decision, repair, truncation
from tests.unit.test_verify_history import history
from twopc.integration.verify.findings import Kind
from twopc.integration.verify.history import BatchId
from twopc.integration.verify.tally import Tally, check_count
from twopc.records import Begin, TaskReport
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import KafkaHandle

if TYPE_CHECKING:
    from twopc.integration.verify.cluster import Cluster
    from twopc.integration.verify.history import History

SINK = KafkaSink(name="s", bootstrap_servers="b:1", topic="out")
TRUNCATED = "older decisions were truncated"
WHOLE = history(BEGIN, decision(0), decision(1))
NEW_QUERY = Begin(query_id="b", first_batch=0, prior_offsets=(), ends="a")


def truncated(first: int, last: int, query_id: str = "a") -> History:
    kept = (decision(number, query_id=query_id) for number in range(first, last + 1))
    return history(*kept, truncation(9, NEW_QUERY if query_id == "b" else BEGIN), start=9)


@pytest.mark.parametrize(
    ("checks", "incomplete"),
    [
        ([(WHOLE, WHOLE)], None),
        ([(WHOLE, WHOLE), (truncated(1, 5), truncated(1, 5))], None),
        ([(WHOLE, WHOLE), (truncated(2, 5), truncated(4, 8)), (truncated(9, 9), truncated(9, 9))], None),
        ([(truncated(1, 2), truncated(1, 2))], TRUNCATED),
        ([(WHOLE, WHOLE), (truncated(3, 5), truncated(3, 5))], TRUNCATED),
        ([(WHOLE, WHOLE), (truncated(3, 5), truncated(3, 5)), (truncated(4, 6), truncated(4, 6))], TRUNCATED),
        ([(WHOLE, truncated(3, 5))], TRUNCATED),
        (
            [(WHOLE, WHOLE), (truncated(0, 3, "b"), truncated(0, 3, "b"))],
            TRUNCATED,
        ),  # the last batches of query "a" are unknown
    ],
)
def test_a_batch_truncated_before_any_check_makes_the_count_incomplete(
    checks: list[tuple[History, History]], incomplete: str | None
) -> None:
    tally = Tally()
    for before, after in checks:
        tally.record(before, after, SINK, ())
    assert tally.expected().incomplete == incomplete


def wrote(partition: int, rows: int) -> TaskReport:
    handle = KafkaHandle(f"u{partition}", f"s.1.w.{partition}", 7, 0, 3, rows, ("out:0", f"{SINK.ledger}:3"))
    handles = {"s": dict(SINK.encode_handle(handle))}
    return TaskReport(partition=partition, rows=rows, checksum=0, handles=handles)


def test_visible_rows_are_counted_from_proofs_and_expected_rows_from_decisions() -> None:
    tally = Tally()
    whole = history(BEGIN, decision(0, wrote(0, 5), wrote(1, 7)))
    tally.record(whole, whole, SINK, {"u0"})
    found = tally.expected()
    assert (found.proven, found.decided) == ({frozenset({"out"}): 5}, {frozenset({"out"}): 12})


def test_abandoned_rows_that_are_lost_are_not_expected() -> None:
    """Otherwise, as many duplicates or foreign records would pass."""
    tally = Tally()
    whole = history(BEGIN, decision(0, wrote(0, 5), wrote(1, 7)))
    tally.record(whole, whole, SINK, {"u0"}, given_up={"u1"})
    found = tally.expected()
    assert found.proven[frozenset({"out"})] == found.decided[frozenset({"out"})] == 5


def test_rows_without_a_transaction_make_the_count_incomplete() -> None:
    """A weaker guarantee writes rows that no decision counts. After a repair, the lost task has no transaction either.

    A transaction of the sink shows that the sink had no weaker guarantee: the other task's rows went to another sink.
    """
    plain, idle = TaskReport(partition=0, rows=5, checksum=0), TaskReport(partition=1, rows=0, checksum=0)
    for tasks, incomplete in (((plain, idle), True), ((plain, wrote(1, 7)), False), ((idle, wrote(1, 7)), False)):
        tally, found = Tally(), history(BEGIN, decision(0, *tasks))
        tally.record(found, found, SINK, ())
        assert (tally.expected().incomplete is not None) == incomplete
    again = msgspec.structs.replace(wrote(1, 5), is_repair=True)
    replaced = msgspec.structs.replace(repair(0, again), replaces=(("s", 0),))
    repaired = history(BEGIN, decision(0, wrote(0, 5)), replaced)
    assert repaired.batches[BatchId("a", 0)].decision.tasks[0].handles == {}
    tally = Tally()
    tally.record(repaired, repaired, SINK, ())
    assert tally.expected().incomplete is None


@pytest.mark.parametrize("decided", [history(BEGIN, decision(0)), truncated(3, 5)])
def test_without_a_topic_records_are_not_compared_if_older_decisions_are_missing(decided: History) -> None:
    tally = Tally()
    tally.record(decided, decided, SINK, ())
    found = list(check_count(cast("Cluster", SimpleNamespace(sink=SINK)), {}, tally.expected(), sole_writer=True))
    assert [one.kind for one in found] == ([] if decided.is_complete else [Kind.NOT_COMPARED])
    assert all("--topic" in one.text for one in found)
