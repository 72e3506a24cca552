"""Verifying a sink while its query decides, commits and truncates."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from tests.unit.test_log_view import ACQUIRE, BEGIN, decision, repair, truncation
from tests.unit.test_verify_history import history
from tests.unit.test_verify_transactions import log_of
from twopc.integration.verify import describing, markers
from twopc.integration.verify.cluster import Bounds, Cluster, Ledgers
from twopc.integration.verify.findings import Kind
from twopc.integration.verify.history import BatchId
from twopc.integration.verify.markers import Markers, missing, wait_for_commits
from twopc.integration.verify.transactions import Decided, decided_in, superseded_in, topics_of
from twopc.integration.verify.verifier import Verifier, VerifyOptions
from twopc.records import TaskReport
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.markers import Marker
from twopc.sinks.kafka.reports import Description, Listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.integration.verify.findings import Finding
    from twopc.records import LogContents

SINK = KafkaSink(name="s", bootstrap_servers="b:1", topic="out")
FIRST, LAST = BatchId("a", 0), BatchId("a", 1)
COMMITTING, COMMITTED, ABORTED = (
    Description("NONE", state, 7, 0) for state in ("PrepareCommit", "CompleteCommit", "CompleteAbort")
)


def handle(uuid: str, *, driver_epoch: int = 1, rows: int = 0) -> KafkaHandle:
    return KafkaHandle(uuid, f"s.{driver_epoch}.{uuid}.0", 7, 0, 3, rows, ("out:0", f"{SINK.ledger}:3"))


def task(uuid: str, **of: int) -> TaskReport:
    return TaskReport(partition=0, rows=0, checksum=0, handles={"s": dict(SINK.encode_handle(handle(uuid, **of)))})


def marker(uuid: str, batch: int = 0) -> Marker:
    return Marker(uuid=uuid, query_id="a", batch_id=batch, attempt=(1, 1), task=0, rows=0)


def record(offset: int, one: Marker) -> Any:
    fields = {"key": one.uuid.encode(), "value": msgspec.json.encode(one), "partition": 3, "offset": offset}
    return SimpleNamespace(**{name: partial(lambda field: field, field) for name, field in fields.items()})


class FakeCluster:
    """Answers each request with the next prepared response and repeats the last one."""

    sink = SINK

    def __init__(
        self,
        *ledgers: LogContents,
        visible: Sequence[list[Marker]] = ([],),
        described: Sequence[dict[str, Description]] = ({},),
        bounds: Sequence[Bounds] = (),
    ) -> None:
        self._ledgers, self._visible, self._described = list(ledgers), list(visible), list(described)
        self._bounds = list(bounds)
        self.reads: list[tuple[int, int]] = []
        self.described = 0
        self.transactions = SimpleNamespace(describe=self._describe, list_open=lambda _: Listing((), complete=True))

    def ledgers(self) -> Ledgers:
        contents = _next(self._ledgers)
        return Ledgers("ledger", contents, contents)

    def marker_bounds(self) -> Bounds:
        if self._bounds:
            return cast("Bounds", _next(self._bounds))
        end = 10 * (len(self.reads) + 1)
        return Bounds({3: 0}, {3: end}, {3: end})

    def read(self, topic: str, starts: dict[int, int], ends: dict[int, int]) -> Iterator[list[Any]]:
        if topic == SINK.ledger and starts[3] < ends[3]:
            self.reads.append((starts[3], ends[3]))
            yield [record(starts[3] + i, one) for i, one in enumerate(_next(self._visible))]

    def bounds(self, topic: str) -> Bounds:
        del topic
        return Bounds({0: 0}, {0: 0}, {0: 0})

    def is_compacted(self, topic: str) -> bool:
        del topic
        return False

    def _describe(self, ids: Sequence[str]) -> dict[str, Description]:
        self.described += 1
        found = _next(self._described)
        return {tid: found.get(tid.split(".")[-2], COMMITTED) for tid in ids}


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def as_cluster(fake: FakeCluster) -> Cluster:
    return cast("Cluster", fake)


def checked(fake: FakeCluster) -> list[Finding]:
    with Verifier(as_cluster(fake), VerifyOptions()) as verifier:
        return list(verifier.check(lambda _: None, lambda _: None).findings)


def decided(*uuids: str, of: BatchId = LAST) -> dict[str, Decided]:
    return {uuid: Decided(of, 0, handle(uuid), 0) for uuid in uuids}


# -- decided transactions ------------------------------------------------------------------------------------------------


def test_the_search_for_a_decided_transactions_marker_begins_at_the_start_of_its_attempt() -> None:
    made = msgspec.structs.replace(decision(0, task("u")), scan_start={"s": {"markers": {"2": 5, "3": 10}}})
    found = decided_in(history(BEGIN, made), SINK)
    assert found == {"u": Decided(FIRST, 0, handle("u"), 10)}


def test_only_transactions_of_the_same_sink_are_replaced() -> None:
    both = TaskReport(partition=0, rows=0, checksum=0, handles={**task("u").handles, "other": {"t": "x"}})
    rewritten = history(BEGIN, decision(0, both), decision(0, task("v"), plan="rewrite"))
    assert superseded_in(rewritten, SINK) == {"u": FIRST}


def test_the_ledger_is_not_an_output_topic() -> None:
    assert topics_of(handle("u"), SINK) == {"out"}


@pytest.mark.parametrize(
    ("description", "is_there"),
    [
        (Description("NONE", "Ongoing", 7, 0), True),
        (Description("NONE", "Ongoing", 7, 1), False),
        (Description("NONE", "Ongoing", 8, 0), False),
        (Description("NO_ANSWER", "Ongoing", 7, 0), False),
    ],
)
def test_a_transactional_id_with_another_producer_counts_as_another_transaction(
    *, description: Description, is_there: bool
) -> None:
    assert description.is_of(handle("u")) is is_there


# -- markers -----------------------------------------------------------------------------------------------------------


def test_a_search_for_markers_resumes_at_its_last_end_or_at_the_topics_new_start() -> None:
    ends = [Bounds({3: start}, {3: end}, {3: end}) for start, end in ((0, 5), (0, 5), (2, 9), (20, 30))]
    cluster, found = FakeCluster(bounds=ends, visible=[[marker("u")], [marker("v")], [marker("w")]]), Markers()
    for _ in ends:
        found.read_new(as_cluster(cluster))
    assert cluster.reads == [(0, 5), (5, 9), (20, 30)]
    assert found.visible.keys() == {"u", "v", "w"}


def test_only_batches_before_the_oldest_kept_one_are_forgotten() -> None:
    found = Markers({uuid: marker(uuid, batch) for uuid, batch in (("u", 3), ("v", 4), ("w", 5))})
    found.forget_before([BatchId("a", 4), BatchId("a", 5)])
    assert found.visible.keys() == {"v", "w"}


def test_a_transaction_committed_while_it_is_being_described_does_not_count_as_missing() -> None:
    cluster = FakeCluster(visible=[[], [marker("u")]], described=[{"u": COMMITTED, "v": ABORTED}])
    found = Markers()
    found.read_new(as_cluster(cluster))
    assert missing(as_cluster(cluster), found, decided("u", "v")) == {"v": ABORTED}


def test_verify_waits_until_the_last_batch_is_fully_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "_COMMIT_S", 60.0)
    cluster = FakeCluster(described=[{"v": COMMITTING}, {"v": COMMITTING}, {}])
    wait_for_commits(as_cluster(cluster), decided("u", "v"), LAST)
    assert cluster.described == 3


def test_verify_does_not_wait_for_an_earlier_batch() -> None:
    cluster = FakeCluster(described=[{"old": COMMITTING}, {}])
    wait_for_commits(as_cluster(cluster), {**decided("u"), **decided("old", of=FIRST)}, LAST)
    assert cluster.described == 1


# -- a whole check -----------------------------------------------------------------------------------------------------


def test_a_batch_truncated_during_a_check_counts_as_decided() -> None:
    before = log_of(BEGIN, decision(0, task("u")), decision(1, task("v")))
    after = log_of(decision(1, task("v")), truncation(2), start=2)
    assert not checked(FakeCluster(before, after, visible=[[marker("u", 0), marker("v", 1)]]))


def test_a_transaction_replaced_during_a_check_is_not_reported_lost() -> None:
    before = log_of(BEGIN, decision(0, task("u")))
    after = log_of(BEGIN, decision(0, task("u")), repair(0, task("v")))
    found = checked(FakeCluster(before, after, described=[{"u": ABORTED}]))
    assert [one.kind for one in found] == [Kind.REPAIRED]


def test_transactional_ids_identify_the_current_driver_if_its_acquisition_was_truncated() -> None:
    log = log_of(ACQUIRE, BEGIN, decision(0, task("u", driver_epoch=8)))
    open_ones = dict.fromkeys(("w", "x"), Description("NONE", "Ongoing", 9, 0))
    cluster = FakeCluster(log, visible=[[marker("u")]], described=[open_ones])
    cluster.transactions.list_open = lambda _: Listing(("s.5.w.0", "s.8.x.0"), complete=True)
    found = [(one.kind, one.where) for one in checked(cluster)]
    assert found == [(Kind.ORPHAN_OPEN, "s.5.w.0"), (Kind.RUNNING_OPEN, "s.8.x.0")]


def test_a_listed_transaction_that_no_coordinator_describes_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "_ANSWER_S", 0.01)
    log = log_of(ACQUIRE, BEGIN, decision(0, task("u")))
    cluster = FakeCluster(log, visible=[[marker("u")]], described=[{"w": Description("NO_ANSWER")}])
    cluster.transactions.list_open = lambda _: Listing(("s.0.w.0",), complete=True)
    [found] = checked(cluster)
    assert found.kind is Kind.LISTING_INCOMPLETE and "s.0.w.0" in found.text
