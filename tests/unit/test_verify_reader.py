"""A topic is read up to its bounds or the read raises; no record is counted twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError

from twopc.errors import RetriableError
from twopc.integration import topic_reader
from twopc.integration.verify.cluster import Bounds
from twopc.integration.verify.expressions import parse
from twopc.integration.verify.findings import Kind
from twopc.integration.verify.output import Output, RecordChecks
from twopc.integration.verify.tally import Expected, check_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.integration.verify.cluster import Cluster

END = KafkaError._PARTITION_EOF
LOST = KafkaError._ALL_BROKERS_DOWN
STABLE = {0: 10, 1: 3}


class Consumer:
    """Returns one of the lists for each ``consume``, then nothing."""

    lists: tuple[list[Any], ...] = ()
    assigned: list[dict[int, int]]

    def __init__(self, _config: dict[str, Any]) -> None: ...

    def assign(self, partitions: list[Any]) -> None:
        self.assigned.append({one.partition: one.offset for one in partitions})

    def consume(self, _count: int, _timeout_s: float) -> list[Any]:
        given = type(self).lists[:1]
        type(self).lists = self.lists[1:]
        return given[0] if given else []

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(topic_reader, "Consumer", Consumer)
    Consumer.assigned = []
    yield
    Consumer.lists = ()


def at(partition: int, offset: int, error: int | None = None) -> Any:
    return SimpleNamespace(
        error=lambda: None if error is None else KafkaError(error),
        partition=lambda: partition,
        offset=lambda: offset,
        key=lambda: b"%d" % partition,
        value=lambda: b"%d" % (100 * partition + offset),
    )


class Offsets:
    """A cluster that only has offsets."""

    def __init__(
        self, starts: dict[int, int], ends: dict[int, int] | None = None, *, compacted: bool | None = False
    ) -> None:
        self._starts, self._ends, self._compacted = starts, ends or STABLE, compacted

    def bounds(self, topic: str) -> Bounds:
        del topic
        return Bounds(self._starts, STABLE, self._ends)

    def is_compacted(self, topic: str) -> bool | None:
        del topic
        return self._compacted

    def read(self, topic: str, starts: dict[int, int], ends: dict[int, int]) -> Iterator[list[Any]]:
        return topic_reader.read_topic({}, topic, starts, ends, timeout_ms=10)


BEGINNING = cast("Cluster", Offsets({0: 0, 1: 0}))


def opened(directory: Path, sequence: str | None = None, by: str | None = None) -> Output:
    parsed = (None if text is None else parse(text) for text in ("value", sequence, by))
    output = Output(RecordChecks(*parsed), directory)
    output.update_bounds(BEGINNING, frozenset({"out"}))
    return output


def read_new(output: Output, *lists: list[Any]) -> None:
    Consumer.lists = lists
    output.read_new(BEGINNING, lambda _: None)


def test_each_partition_of_a_topic_is_read_to_its_end(tmp_path: Path) -> None:
    output = opened(tmp_path)
    read_new(output, [at(0, 0), at(1, 2), at(0, 8)], [at(1, 3, END), at(0, 10, END)])
    assert (output.records, output.unread()) == ({"out": 3}, 0)


def test_the_lower_end_offset_of_a_lagging_broker_does_not_count_as_the_end(tmp_path: Path) -> None:
    output = opened(tmp_path)
    read_new(output, [at(1, 3, END), at(0, 5), at(0, 6, END)], [at(0, 8), at(0, 10, END)])
    assert (output.records, output.unread()) == ({"out": 2}, 0)


def test_offsets_not_reached_by_a_read_still_count_as_unread(tmp_path: Path) -> None:
    output = opened(tmp_path)
    with pytest.raises(RetriableError, match="did not respond"):
        read_new(output, [at(0, 5), at(0, 6, END)])
    assert (output.records, output.unread()) == ({"out": 1}, 4 + 3)


def test_reading_resumes_after_an_error(tmp_path: Path) -> None:
    output = opened(tmp_path)
    with pytest.raises(RetriableError):
        read_new(output, [at(0, 0), at(0, 1), at(1, 0)], [at(0, 2), at(0, -1, LOST)])
    read_new(output, [at(0, 2), at(1, 2), at(0, 9)])
    assert Consumer.assigned == [{0: 0, 1: 0}, {0: 2, 1: 1}]
    assert output.records == {"out": 6}
    assert not list(output.check_records(BEGINNING, is_quiescent=True))


def test_records_deleted_before_they_were_read_prevent_the_comparison(tmp_path: Path) -> None:
    output = opened(tmp_path, sequence="value")
    with pytest.raises(RetriableError, match="retention deleted records before they were read"):
        read_new(output, [at(0, 0)], [at(0, -1, KafkaError._AUTO_OFFSET_RESET)])
    output.update_bounds(cast("Cluster", Offsets({0: 7, 1: 0})), frozenset({"out"}))
    read_new(output, [at(0, 9), at(1, 3, END)])
    assert Consumer.assigned[1] == {0: 7, 1: 0}
    everything = {frozenset({"out"}): 10}
    expected = Expected(proven=everything, decided=everything, incomplete=None)
    counted = check_count(BEGINNING, output.topics, expected, sole_writer=True)
    found = [*counted, *output.check_records(BEGINNING, is_quiescent=True)]
    assert [one.kind for one in found] == [Kind.NOT_COMPARED, Kind.NOT_COMPARED]


@pytest.mark.parametrize(
    ("start", "compacted", "named"),
    [
        (7, False, "deleted from out (retention"),
        (7, None, "deleted from out (retention"),
        (0, True, "deleted from out (retention, compaction"),
        (0, None, "allow DescribeConfigs on the topic out"),
    ],
)
def test_a_missing_number_is_no_gap_if_retention_or_compaction_may_have_deleted_it(
    *, start: int, compacted: bool | None, named: str, tmp_path: Path
) -> None:
    """Retention deletes the oldest records of each partition, so it leaves holes in a sequence over several partitions."""
    cluster = cast("Cluster", Offsets({0: start, 1: 0}, compacted=compacted))
    output = Output(RecordChecks(None, parse("value"), None), tmp_path)
    output.update_bounds(cluster, frozenset({"out"}))
    read_new(output, [at(0, 7), at(0, 9), at(1, 3, END)])
    (found,) = output.check_records(cluster, is_quiescent=True)
    assert found.kind is Kind.NOT_COMPARED
    assert "1 number is missing, such as 7 to 9" in found.text and named in found.text


@pytest.mark.parametrize(
    ("is_quiescent", "ends", "kind"),
    [
        (True, STABLE, Kind.SEQUENCE_GAPS),
        (False, STABLE, Kind.NOT_COMPARED),
        (True, {0: 10, 1: 4}, Kind.NOT_COMPARED),  # the missing record may be behind an open transaction
    ],
)
def test_a_missing_number_counts_as_a_gap_only_if_no_commit_is_in_progress(
    *, is_quiescent: bool, ends: dict[int, int], kind: Kind, tmp_path: Path
) -> None:
    output = opened(tmp_path, sequence="value")
    read_new(output, [at(0, 5), at(0, 7), at(0, 10, END), at(1, 3, END)])
    output.update_bounds(cast("Cluster", Offsets({0: 0, 1: 0}, ends)), frozenset({"out"}))
    (found,) = output.check_records(BEGINNING, is_quiescent=is_quiescent)
    assert (found.kind, "1 number is missing" in found.text) == (kind, True)


@pytest.mark.parametrize(("by", "kinds"), [(None, [Kind.SEQUENCE_GAPS]), ("key", [])])
def test_each_group_has_its_own_sequence(by: str | None, kinds: list[Kind], tmp_path: Path) -> None:
    output = opened(tmp_path, sequence="value", by=by)
    read_new(output, [at(0, 8), at(0, 9), at(1, 0), at(1, 1), at(1, 2)])
    assert [one.kind for one in output.check_records(BEGINNING, is_quiescent=True)] == kinds
