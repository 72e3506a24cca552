"""What happens to the idle producers of sinks without transactions, which may still have unsent records."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from twopc.attempt import Attempt, TaskAttempt
from twopc.sinks.kafka import KafkaSink, batch_size, plain_writer
from twopc.sinks.kafka.plain_writer import PlainWriter, release
from twopc.sinks.kafka.producer import ReadyProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

TASK = TaskAttempt(query_id="a", batch_id=0, attempt=Attempt(1, 1), partition=1, driver_epoch=1, committed_through=-1)


@dataclass
class Client:
    """A client with some unsent records, which the brokers accept or not."""

    unsent: int = 1
    is_accepted: bool = True

    def flush(self, _timeout_s: float) -> int:
        if self.is_accepted:
            self.unsent = 0
        return self.unsent


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The clients of all producers, in the order of their creation."""
    made: list[Client] = []

    def make(writer: PlainWriter) -> ReadyProducer:
        made.append(Client())
        return ReadyProducer(cast("Any", made[-1]), f"{writer._settings.name} (NONE)", 0, {})

    monkeypatch.setattr(plain_writer, "_idle", {})
    monkeypatch.setattr(PlainWriter, "_make", make)
    return made


def sink_of(name: str) -> KafkaSink:
    return KafkaSink(name=name, bootstrap_servers="b:1", guarantee="NONE", timeout_ms=1000)


def begun(name: str) -> PlainWriter:
    writer = PlainWriter(TASK, sink_of(name))
    writer.begin_transaction()
    return writer


def test_a_producer_that_must_make_room_sends_its_records_first(clients: list[Client]) -> None:
    """The records were lost without a message, because the client was destroyed with its queue."""
    for number in range(plain_writer._MOST_IDLE + 1):
        begun(f"s{number}").hand_over()
    assert [client.unsent for client in clients] == [0, *[1] * plain_writer._MOST_IDLE]
    begun("s1").hand_over()
    assert len(clients) == plain_writer._MOST_IDLE + 1


def test_records_that_a_producer_cannot_send_before_it_makes_room_are_logged(
    clients: list[Client], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(plain_writer._MOST_IDLE):
        begun(f"s{number}").hand_over()
    clients[0].is_accepted = False
    begun("last").hand_over()
    [record] = caplog.records
    assert record.getMessage().startswith("sink s0 (NONE): 1 record was not acknowledged, and may be lost")


def test_a_task_that_ends_beside_another_task_of_its_sink_does_not_drop_the_other_tasks_records(
    clients: list[Client],
) -> None:
    one, other = begun("s"), begun("s")
    one.hand_over()
    other.hand_over()
    assert [client.unsent for client in clients] == [0, 1]
    assert release(sink_of("s")) == []
    assert [client.unsent for client in clients] == [0, 0]


def test_a_task_whose_first_rows_need_smaller_batches_does_not_drop_an_earlier_tasks_records(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the earlier task had voted, nothing failed, and its rows were never sent."""
    monkeypatch.setattr(batch_size, "_known", {})
    monkeypatch.setattr(
        batch_size, "_ask", lambda _settings, topics: dict.fromkeys(topics, (65_536, "max.message.bytes"))
    )
    begun("s").hand_over()
    later = begun("s")
    later._fit_batches(pa.record_batch({"topic": ["small"]}))
    assert len(clients) == 2
    assert later._begun.producer is clients[1]  # type: ignore[comparison-overlap]
    later.abort()
    assert clients[0].unsent == 1  # it is idle, and not yet flushed
    assert release(sink_of("s")) == []
    assert [client.unsent for client in clients] == [0, 1]


class Interrupted(dict[Any, Any]):
    """A dictionary that lets another thread run in the middle of each iteration."""

    def __init__(self, content: dict[Any, Any], other: threading.Thread) -> None:
        super().__init__(content)
        self.other = other

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            if self.other.ident is None:
                self.other.start()
                self.other.join(0.2)  # the thread ends, unless it waits for the lock
            yield key


def test_a_query_ends_while_another_querys_thread_hands_over_a_producer(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver has a thread for each of its queries."""
    other = threading.Thread(target=begun("b").hand_over)
    begun("a").hand_over()
    monkeypatch.setattr(plain_writer, "_idle", Interrupted(plain_writer._idle, other))
    assert release(sink_of("a")) == []
    other.join(30)
    assert [client.unsent for client in clients] == [1, 0]
    assert release(sink_of("b")) == []
