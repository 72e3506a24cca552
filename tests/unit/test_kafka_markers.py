"""Where the search for markers begins and ends, to the offset (rule 4)."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka.admin import OffsetSpec

from twopc.attempt import Attempt, Evidence, Known, TaskAttempt
from twopc.errors import ConfigurationError, RetriableError
from twopc.sinks.kafka import markers
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.markers import encode_marker
from twopc.sinks.kafka.reader import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

START = 40
HANDLE = KafkaHandle("ours", "s.1.w.0", 7, 3, marker_partition=2, rows=1, partitions=())
MARKER = Row(START, b"ours", b"{}")


class Log:
    """One partition of markers that starts at ``earliest``."""

    name = "twopc-ledger-s"
    admin = None

    def __init__(self, *rows: Row, hidden: bool = False) -> None:
        self._held = list(rows)
        self._hidden = hidden
        self.reader = SimpleNamespace(rows=self._rows)
        self.topic = SimpleNamespace(marker_partitions=lambda: [2])

    def write(self, values: list[tuple[int, bytes]]) -> int:
        [(_, barrier)] = values
        self._held.append(Row(START + 10, None, barrier))
        return START + 10

    def _rows(
        self, _topic: str, _partition: int, start: int, last: Callable[[Row], bool] | None, **_: Any
    ) -> list[Row]:
        found = [row for row in self._held if row.offset >= start]
        if self._hidden or (last is not None and not any(map(last, found))):
            raise RetriableError("nothing came")
        return found


def search(log: Any, monkeypatch: pytest.MonkeyPatch, *, earliest: int = 0) -> Evidence:
    monkeypatch.setattr(markers, "offsets", lambda *_, **__: {2: earliest})
    evidence, reasons = markers.search(log, [HANDLE], {"2": START}, timeout_ms=1)
    assert (evidence[HANDLE] is Evidence.UNKNOWN) == bool(reasons), "a search that proves nothing should give a reason"
    assert all("twopc-ledger-s/2" in reason for reason in reasons)
    return evidence[HANDLE]


def test_a_marker_at_the_scan_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(Log(MARKER), monkeypatch) is Evidence.COMMITTED


def test_a_marker_not_found_before_the_barrier_is_proven_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(Log(Row(START, b"another", b"{}")), monkeypatch) is Evidence.ABORTED


def test_a_barrier_that_is_not_found_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(Log(MARKER, hidden=True), monkeypatch) is Evidence.UNKNOWN


@pytest.mark.parametrize(("earliest", "proven"), [(START, Evidence.ABORTED), (START + 1, Evidence.UNKNOWN)])
def test_a_single_deleted_record_may_have_been_the_marker(
    earliest: int, proven: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search(Log(), monkeypatch, earliest=earliest) is proven


def test_the_error_quotes_why_a_partition_cannot_be_read_and_the_others_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each partition could take as long, while transactions expire."""
    tried = []

    def offsets(_admin: object, _topic: str, partitions: list[int], *_: Any, **__: Any) -> dict[int, int]:
        tried.append(partitions)
        raise ConfigurationError("TOPIC_AUTHORIZATION_FAILED: allow Read")

    monkeypatch.setattr(markers, "offsets", offsets)
    other = dataclasses.replace(HANDLE, uuid="other", marker_partition=3)
    evidence, reasons = markers.search(cast("Any", Log()), [HANDLE, other], {}, timeout_ms=1)
    assert evidence == {HANDLE: Evidence.UNKNOWN, other: Evidence.UNKNOWN}
    assert reasons == ["the markers in twopc-ledger-s/2 cannot be read: TOPIC_AUTHORIZATION_FAILED: allow Read"]
    assert tried == [[2]]


# -- a copy of the checkpoint --------------------------------------------------------------------------------------------


def known(*, is_swept: bool = False) -> Known[KafkaHandle]:
    return Known("query", 5, [HANDLE], is_swept)


def has_unknown(
    log: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    earliest: int = 0,
    is_swept: bool = False,
    starts: Mapping[str, int] = MappingProxyType({"2": START}),
) -> bool:
    monkeypatch.setattr(markers, "offsets", lambda *_, **__: {2: earliest})
    return markers.has_unknown(log, known(is_swept=is_swept), starts, timeout_ms=1)


def marker(uuid: str, query_id: str, batch_id: int, *, offset: int = START) -> Row:
    task = TaskAttempt(query_id, batch_id, Attempt(1, 1), partition=0, driver_epoch=1, committed_through=-1)
    return Row(offset, uuid.encode(), encode_marker(uuid, task, rows=1))


@pytest.mark.parametrize("is_swept", [False, True])
@pytest.mark.parametrize(
    ("row", "is_unknown"),
    [
        (marker("ours", "query", 5), False),
        (marker("theirs", "query", 5), True),
        (marker("theirs", "query", 6), True),
        (marker("earlier", "query", 4), False),
        (marker("theirs", "another query", 6), False),
        (marker("theirs", "query", 6, offset=START - 1), False),
        (Row(START, None, b"barrier 0"), False),
    ],
    ids=[
        "decided",
        "the same batch",
        "a later batch",
        "an earlier batch",
        "another query",
        "before the start",
        "a barrier",
    ],
)
def test_a_marker_that_belongs_to_no_decision_reveals_another_run(
    row: Row, *, is_unknown: bool, is_swept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_unknown(Log(row), monkeypatch, is_swept=is_swept) is is_unknown


def test_an_open_transaction_may_hide_a_marker_only_before_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.reader = SimpleNamespace(rows=lambda *args, **_: log._rows(*args) if args[3] else [])
    log._hidden = True
    assert not has_unknown(log, monkeypatch)
    with pytest.raises(RetriableError):
        has_unknown(log, monkeypatch, is_swept=True)


def test_deleted_markers_of_the_last_decision_reveal_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_unknown(Log(), monkeypatch, earliest=START)
    assert has_unknown(Log(), monkeypatch, earliest=START + 1)


def test_a_partition_that_the_decision_does_not_list_is_read_from_its_first_record_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert has_unknown(Log(marker("theirs", "query", 6)), monkeypatch, earliest=START, starts={})


# -- a ledger that has lost decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earliest", "latest", "is_unknown"),
    [(0, START + 2, True), (START + 1, START + 2, True), (START + 2, START + 2, False), (0, START - 1, False)],
    ids=["all records are there", "older ones were deleted", "all were deleted", "the newest ones were lost"],
)
def test_missing_markers_do_not_count_if_all_copies_use_the_ledger(
    earliest: int, latest: int, *, is_unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offsets(_log: object, _topic: str, _partitions: object, spec: OffsetSpec, **_: Any) -> dict[int, int]:
        return {2: latest if spec is OffsetSpec.latest() else earliest}

    monkeypatch.setattr(markers, "offsets", offsets)
    log: Any = Log(marker("theirs", "query", 6, offset=START + 1))
    if latest < START:
        log.reader.rows = None  # a read beyond the end fails
    shared = dataclasses.replace(known(), decides_in_checkpoint=False)
    assert markers.has_unknown(log, shared, {"2": START}, timeout_ms=1) is is_unknown


def test_a_record_of_another_program_reveals_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_unknown(Log(Row(START, b"key", b"not a marker")), monkeypatch)
