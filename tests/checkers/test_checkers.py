"""Each checker passes a good history and reports each handmade bad one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from twopc.testing.checkers import rows
from twopc.testing.checkers.aborted_reads import aborted_reads
from twopc.testing.checkers.equality import unequal
from twopc.testing.checkers.history import (
    Decided,
    Kind,
    LogEntry,
    Observation,
    Position,
    Producer,
    Row,
    StableOffset,
    Violation,
    source_in_value,
)
from twopc.testing.checkers.ledger import disagreeing
from twopc.testing.checkers.open_transactions import left_open
from twopc.testing.checkers.order import inverted
from twopc.testing.checkers.stall import stalled
from twopc.testing.checkers.whole_transactions import torn

ONE, TWO = Producer(1, 0), Producer(2, 0)


def row(partition: int, offset: int, source: str, key: bytes = b"k") -> Observation:
    return Observation(Position(partition, offset), key, source.encode())


def entry(partition: int, offset: int, producer: Producer, kind: Kind = Kind.ROW) -> LogEntry:
    return LogEntry(Position(partition, offset), producer, kind)


#: Two transactions over two partitions: ONE committed, TWO aborted.
LOG = [
    entry(0, 0, ONE),
    entry(0, 1, TWO),
    entry(0, 2, ONE),
    entry(0, 3, TWO, Kind.ABORT),
    entry(0, 4, ONE, Kind.COMMIT),
    entry(1, 0, ONE),
    entry(1, 1, ONE, Kind.COMMIT),
    entry(1, 2, TWO),
    entry(1, 3, TWO, Kind.ABORT),
]
SEEN = [row(0, 0, "0:0"), row(0, 2, "0:1"), row(1, 0, "0:2")]
GIVEN = {Position(0, number): Row(b"k", b"0:%d" % number) for number in range(3)}
DECIDED = [Decided("uuid-one", ONE, 3)]


def whats(violations: list[Violation]) -> list[str]:
    return [violation.what for violation in violations]


def test_a_good_history_passes_every_checker() -> None:
    assert unequal(GIVEN, SEEN) == []
    assert inverted(SEEN) == []
    assert aborted_reads(SEEN, LOG, SEEN) == []
    assert torn(SEEN, LOG) == []
    assert disagreeing(DECIDED, SEEN, LOG, ["uuid-one"]) == []
    assert left_open({"one": "CompleteCommit", "two": "CompleteAbort", "three": "Empty"}) == []
    assert stalled([StableOffset(0, 0, 1, 5), StableOffset(0.5, 0, 5, 5), StableOffset(9, 0, 5, 5)], bound_s=1) == []


@pytest.mark.parametrize(
    ("observed", "what"),
    [
        (SEEN[:2], "lost"),
        ([*SEEN, row(1, 9, "0:2")], "duplicated"),
        ([*SEEN, row(1, 9, "7:0")], "made up"),
        ([*SEEN[:2], row(1, 0, "0:2 other")], "altered"),
        ([*SEEN[:2], row(1, 0, "0:2", b"other key")], "altered"),
        ([*SEEN, row(1, 9, "garbage")], "made up: the row does not identify a source record"),
    ],
)
def test_differences_between_input_and_output_are_reported(observed: list[Observation], what: str) -> None:
    assert whats(unequal(GIVEN, observed)) == [what]


def test_records_with_the_same_key_in_the_wrong_order_are_reported() -> None:
    wrong = [row(0, 0, "0:1"), row(0, 2, "0:0")]
    [violation] = inverted(wrong)
    assert violation.evidence == tuple(wrong)


def test_order_matters_only_within_one_key_one_source_partition_and_one_output_partition() -> None:
    assert inverted([row(0, 0, "0:1"), row(0, 1, "0:0", b"other"), row(1, 0, "0:0"), row(0, 2, "1:0")]) == []


def test_records_are_ordered_by_offset_and_not_by_read_time() -> None:
    assert inverted([row(0, 2, "0:1"), row(0, 0, "0:0")]) == []


def test_each_record_that_follows_a_later_one_is_reported_once() -> None:
    assert len(inverted([row(0, 0, "0:9"), row(0, 1, "0:1"), row(0, 2, "0:2")])) == 2


@pytest.mark.parametrize(
    ("observed", "final", "what"),
    [
        ([*SEEN, row(0, 1, "0:3")], [*SEEN, row(0, 1, "0:3")], "was read although its transaction was aborted"),
        (SEEN, SEEN[:2], "was read, but then vanished"),
        (SEEN[:2], SEEN, "became visible at an offset that a reader had already passed"),
        (SEEN, [*SEEN[:2], row(1, 0, "0:9")], "was read, but then changed"),
    ],
)
def test_reads_of_uncommitted_records_are_reported(
    observed: list[Observation], final: list[Observation], what: str
) -> None:
    assert whats(aborted_reads(observed, LOG, final)) == [what]


def test_a_read_from_an_open_transaction_is_reported() -> None:
    still_open = [line for line in LOG if line.position != Position(1, 1)]
    assert whats(aborted_reads(SEEN, still_open, SEEN)) == ["was read although its transaction was never ended"]


def test_different_records_read_at_the_same_offset_are_reported() -> None:
    assert "an offset was read twice with different records" in whats(
        aborted_reads([*SEEN, row(0, 0, "0:9")], LOG, SEEN)
    )


def test_a_record_may_be_read_twice() -> None:
    assert aborted_reads([*SEEN, dataclasses.replace(SEEN[0], at_s=9)], LOG, SEEN) == []


def test_a_transaction_visible_in_only_some_partitions_is_reported() -> None:
    [violation] = torn(SEEN[:2], LOG)
    assert violation.what == f"the transaction of {ONE} is only partly visible"
    assert violation.evidence == ((Position(0, 0), Position(0, 2)), (Position(1, 0),))


def test_a_transaction_committed_in_one_partition_and_aborted_in_another_is_reported() -> None:
    """A late EndTxn between two of its writes does this (KAFKA-17754)."""
    log = [line if line.position != Position(1, 1) else entry(1, 1, ONE, Kind.ABORT) for line in LOG]
    found = whats(torn(SEEN[:2], log))
    assert f"the transaction of {ONE} ended differently in different partitions: abort marker, commit marker" in found


def test_a_transaction_ended_in_only_one_partition_is_reported() -> None:
    log = [line for line in LOG if line.position != Position(1, 3)]
    assert whats(torn(SEEN, log)) == [
        f"the transaction of {TWO} ended differently in different partitions: abort marker, open"
    ]


@pytest.mark.parametrize(
    ("decided", "observed", "markers", "reported"),
    [
        (DECIDED, SEEN[:2], ["uuid-one"], ["3 rows decided, 2 visible"]),
        ([], SEEN, [], ["these rows are visible, but no decision contains them"]),
        (DECIDED, SEEN, [], ["was decided, but its marker is not visible"]),
        (DECIDED, SEEN, ["uuid-one", "uuid-two"], ["this marker is visible, but no decision contains it"]),
        (DECIDED, SEEN, ["uuid-one"] * 2, ["this marker is visible, but no decision contains it"]),
        (
            [*DECIDED, *DECIDED],
            SEEN,
            ["uuid-one"] * 2,
            ["several decided transactions share the same producer epoch"],
        ),
        (DECIDED, [*SEEN, row(7, 0, "0:2")], ["uuid-one"], ["was read, but is not in the log"]),
        ([*DECIDED, Decided("uuid-two", TWO, 2)], SEEN, ["uuid-one", "uuid-two"], ["2 rows decided, 0 visible"]),
    ],
)
def test_a_ledger_that_disagrees_with_the_data_is_reported(
    decided: list[Decided], observed: list[Observation], markers: list[str], reported: list[str]
) -> None:
    assert whats(disagreeing(decided, observed, LOG, markers)) == reported


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"])
def test_an_open_transaction_is_reported(state: str) -> None:
    assert whats(left_open({"one": "CompleteCommit", "two": state})) == [f"two is {state}"]


def test_a_stalled_last_stable_offset_is_reported() -> None:
    samples = [StableOffset(at, 0, 3, 5) for at in (0, 1, 2)] + [StableOffset(at, 1, 5, 5) for at in (0, 1, 2)]
    [violation] = stalled(samples, bound_s=1.5)
    assert violation.what == "the last stable offset of partition 0 stayed at 3 for 2.0 s"


def test_a_slowly_moving_last_stable_offset_is_not_a_stall() -> None:
    assert stalled([StableOffset(at, 0, at, 99) for at in range(9)], bound_s=1.5) == []


def test_a_stall_that_has_ended_is_still_reported() -> None:
    samples = [StableOffset(0, 0, 3, 5), StableOffset(4, 0, 5, 5), StableOffset(5, 0, 5, 5)]
    assert whats(stalled(samples, bound_s=1)) == ["the last stable offset of partition 0 stayed at 3 for 4.0 s"]


def test_a_value_without_a_source_position_is_rejected() -> None:
    assert source_in_value(row(0, 0, "3:17 rest")) == Position(3, 17)
    with pytest.raises(ValueError, match="invalid literal"):
        source_in_value(row(0, 0, "rest"))


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([3, 1, 2], []),
        ([1, 2], [("lost", (3,))]),
        ([1, 2, 3, 2, 2], [("duplicated", (2, 3))]),
        ([1, 2, 3, 9], [("made up", (9, 1))]),
        ([1, 1, 2], [("lost", (3,)), ("duplicated", (1, 2))]),
    ],
)
def test_lost_duplicated_and_invented_rows_are_reported(found: list[int], wrong: list[Any]) -> None:
    assert [(violation.what, violation.evidence) for violation in rows.not_once([1, 2, 3], found)] == wrong


def test_a_partly_visible_batch_is_reported() -> None:
    batches = {0: [1, 2], 1: [3, 4], 2: [5, 6]}
    [violation] = rows.in_part(batches, [1, 2, 3])
    assert (violation.what, violation.evidence) == ("batch 1 is only partly visible", (1, (4,)))


def test_rows_of_a_key_out_of_order_are_reported() -> None:
    assert rows.out_of_order([1, 2, 5, 3, 4, 6], lambda row: row % 2) == [
        Violation("order", "key 1 is out of order", (5, 3)),
    ]
