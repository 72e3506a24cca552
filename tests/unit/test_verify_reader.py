"""A topic is read to where it was to be read to, or the reader says that it was not; and nothing is counted twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from confluent_kafka import KafkaError

from integration import topic_reader
from integration.verify.cluster import Bounds, Cluster
from integration.verify.expressions import parse
from integration.verify.findings import Kind
from integration.verify.output import Comparison, Output, Questions
from twopc.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

END = KafkaError._PARTITION_EOF
LOST = KafkaError._ALL_BROKERS_DOWN
STABLE = {0: 10, 1: 3}


class Consumer:
    """Gives what it is told to give, one ``consume`` after the other, then nothing."""

    told: tuple[list[Any], ...] = ()
    assigned: list[dict[int, int]]

    def __init__(self, _config: dict[str, Any]) -> None: ...

    def assign(self, partitions: list[Any]) -> None:
        self.assigned.append({one.partition: one.offset for one in partitions})

    def consume(self, _count: int, _timeout_s: float) -> list[Any]:
        given = type(self).told[:1]
        type(self).told = self.told[1:]
        return given[0] if given else []

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(topic_reader, "Consumer", Consumer)
    Consumer.assigned = []
    yield
    Consumer.told = ()


def at(partition: int, offset: int, error: int | None = None) -> Any:
    return SimpleNamespace(
        error=lambda: None if error is None else KafkaError(error),
        partition=lambda: partition,
        offset=lambda: offset,
        key=lambda: b"%d" % partition,
        value=lambda: b"%d" % (100 * partition + offset),
    )


class Offsets:
    """Stands in for a cluster of which only offsets are asked."""

    sink = SimpleNamespace(timeout_ms=10)
    connection: ClassVar[dict[str, Any]] = {}

    def __init__(self, starts: dict[int, int], ends: dict[int, int] | None = None) -> None:
        self._starts, self._ends = starts, ends or STABLE

    def bounds(self, topic: str) -> Bounds:
        del topic
        return Bounds(self._starts, STABLE, self._ends)


BEGINNING = cast("Cluster", Offsets({0: 0, 1: 0}))


def looked(directory: Path, sequence: str | None = None, by: str | None = None) -> Output:
    asked = (None if text is None else parse(text) for text in ("value", sequence, by))
    output = Output(Questions(*asked), directory)
    output.look(BEGINNING, frozenset({"out"}))
    return output


def read_on(output: Output, *told: list[Any]) -> None:
    Consumer.told = told
    output.read_on(BEGINNING, lambda _: None)


def test_a_topic_is_read_to_its_ends(tmp_path: Path) -> None:
    output = looked(tmp_path)
    read_on(output, [at(0, 0), at(1, 2), at(0, 8)], [at(1, 3, END), at(0, 10, END)])
    assert (output.records, output.unread()) == ({"out": 3}, 0)


def test_an_end_before_the_wanted_one_is_a_brokers_that_is_behind(tmp_path: Path) -> None:
    output = looked(tmp_path)
    read_on(output, [at(1, 3, END), at(0, 5), at(0, 6, END)], [at(0, 8), at(0, 10, END)])
    assert (output.records, output.unread()) == ({"out": 2}, 0)


def test_what_was_not_reached_is_not_taken_for_read(tmp_path: Path) -> None:
    output = looked(tmp_path)
    with pytest.raises(RetriableError, match="no answer"):
        read_on(output, [at(0, 5), at(0, 6, END)])
    assert (output.records, output.unread()) == ({"out": 1}, 4 + 3)


def test_after_an_error_it_goes_on_where_it_was(tmp_path: Path) -> None:
    output = looked(tmp_path)
    with pytest.raises(RetriableError):
        read_on(output, [at(0, 0), at(0, 1), at(1, 0)], [at(0, 2), at(0, -1, LOST)])
    read_on(output, [at(0, 2), at(1, 2), at(0, 9)])
    assert Consumer.assigned == [{0: 0, 1: 0}, {0: 2, 1: 1}]
    assert output.records == {"out": 6}
    assert not list(output.check_records(is_settled=True))


def test_what_was_deleted_before_it_was_read_is_passed_over_and_not_compared(tmp_path: Path) -> None:
    output = looked(tmp_path, sequence="value")
    with pytest.raises(RetriableError, match="deleted while they were read"):
        read_on(output, [at(0, 0)], [at(0, -1, KafkaError._AUTO_OFFSET_RESET)])
    output.look(cast("Cluster", Offsets({0: 7, 1: 0})), frozenset({"out"}))
    read_on(output, [at(0, 9), at(1, 3, END)])
    assert Consumer.assigned[1] == {0: 7, 1: 0}
    everything = {frozenset({"out"}): 10}
    expected = Comparison(proven=everything, decided=everything, incomplete=None, sole_writer=True)
    found = [*output.check_count(BEGINNING, expected), *output.check_records(is_settled=True)]
    assert [one.kind for one in found] == [Kind.NOT_COMPARED, Kind.NOT_COMPARED]


@pytest.mark.parametrize(
    ("is_settled", "ends", "kind"),
    [
        (True, STABLE, Kind.SEQUENCE_GAPS),
        (False, STABLE, Kind.NOT_COMPARED),
        (True, {0: 10, 1: 4}, Kind.NOT_COMPARED),  # what is missing may be behind an open transaction
    ],
)
def test_a_missing_number_is_a_gap_only_where_nothing_is_on_its_way(
    *, is_settled: bool, ends: dict[int, int], kind: Kind, tmp_path: Path
) -> None:
    output = looked(tmp_path, sequence="value")
    read_on(output, [at(0, 5), at(0, 7), at(0, 10, END), at(1, 3, END)])
    output.look(cast("Cluster", Offsets({0: 0, 1: 0}, ends)), frozenset({"out"}))
    (found,) = output.check_records(is_settled=is_settled)
    assert (found.kind, "1 numbers are missing" in found.text) == (kind, True)


@pytest.mark.parametrize(("by", "kinds"), [(None, [Kind.SEQUENCE_GAPS]), ("key", [])])
def test_each_group_has_a_sequence_of_its_own(by: str | None, kinds: list[Kind], tmp_path: Path) -> None:
    output = looked(tmp_path, sequence="value", by=by)
    read_on(output, [at(0, 8), at(0, 9), at(1, 0), at(1, 1), at(1, 2)])
    assert [one.kind for one in output.check_records(is_settled=True)] == kinds
