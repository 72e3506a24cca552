"""Tools of the schedules: drivers that die or are interrupted, and outsiders."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from kafka.admin import AbortTransactionSpec
from kafka.structs import TopicPartition

from tests.live.pipeline import Query, Tasks, opened
from tests.reader import consumer_of, counted, read_to_end
from tests.tasks import attempt_of
from twopc import crash_points
from twopc.attempt import Attempt
from twopc.coordinator import Coordinator
from twopc.engine import Work, Write
from twopc.files import LocalFiles
from twopc.override import Overrides
from twopc.records import Acquired, Decision
from twopc.settings import Settings
from twopc.sinks.kafka import producer_pool
from twopc.sinks.kafka.decision_log import KafkaDecisionLog
from twopc.sinks.kafka.handle import KafkaHandle, ProducerIdentity
from twopc.sinks.kafka.transactions import TransactionClient
from twopc.testing.crash_points import InjectedFault, vanish

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.live.services import KafkaService
    from twopc.records import TaskReport
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.reports import Description
    from twopc.sinks.kafka.writer import KafkaWriter


class Play(Query):
    """A query whose clients close together with the query. ``outsider`` does to the cluster what any client may do."""

    def __init__(self, kafka: KafkaService, root: Path, *, name: str | None = None, **sink_arguments: Any) -> None:
        super().__init__(kafka.bootstrap_servers, root, **sink_arguments)
        if name is not None:
            self.name = name
            self.sink = dataclasses.replace(self.sink, name=name)
        self.outsider = TransactionClient(self.sink.committing_config())
        self._reader = consumer_of(self.bootstrap_servers)

    def close(self) -> None:
        self.outsider.close()
        self._reader.close()
        self.forget_worker()

    def forget_worker(self) -> None:
        """Make the next task run in another Python worker, which shares no producers with this worker."""
        for place in [place for place in producer_pool._pools if place.sink == self.name]:
            pool = producer_pool._pools.pop(place)
            if (making := pool._making) is not None:
                making.join()

    def visible(self) -> Counter[str]:
        """As :meth:`Query.visible`, but over one connection for the whole test, which saves half a second each time."""
        return counted(read_to_end(self._reader, self.topic))

    # -- the broker's records ------------------------------------------------------------------------------------------

    def decisions(self) -> list[Decision]:
        return [record for record in self._records() if isinstance(record, Decision)]

    def plans(self) -> list[str]:
        return [decision.kind for decision in self.decisions()]

    def acquisitions(self) -> list[Acquired]:
        return [record for record in self._records() if isinstance(record, Acquired)]

    def decided(self, batch: int) -> list[KafkaHandle]:
        """The handles of the last decision for ``batch``, by task."""

        def found() -> list[Decision]:
            return [decision for decision in self.decisions() if decision.batch_id == batch]

        # A broker answers EndTxn before it has written the markers, so an external reader may read too early.
        assert until(lambda: bool(found()))
        return self.handles(found()[-1].tasks)

    def handles(self, tasks: Sequence[TaskReport]) -> list[KafkaHandle]:
        return [self.sink.decode_handle(task.handles[self.name]) for task in tasks if self.name in task.handles]

    def open_transactions(self) -> tuple[str, ...]:
        return self.outsider.list_open(f"{self.name}.").transactional_ids

    def describe(self, transactional_id: str) -> Description:
        return self.outsider.describe([transactional_id])[transactional_id]

    def found(self, transactional_id: str) -> KafkaHandle:
        """A handle made from what an outsider can find out about a transaction."""
        found = self.describe(transactional_id)
        return KafkaHandle("", transactional_id, found.producer_id, found.producer_epoch, 1, 0, ())

    def _records(self) -> list[Any]:
        ledger = self.sink.create_decision_log()
        try:
            return [entry.record for entry in ledger.inspect().entries]
        finally:
            ledger.close()

    # -- actions of other clients --------------------------------------------------------------------------------------

    def fence(self, transactional_id: str) -> None:
        """Initialise an id from outside: its open transaction is aborted, and its epoch becomes obsolete."""
        assert until(lambda: self.outsider.fence([ProducerIdentity(transactional_id)])[transactional_id] == "NONE")

    def end(self, handle: KafkaHandle, *, commit: bool) -> str:
        """End a transaction from outside, at the handle's producer id and epoch; returns the broker's response."""
        identity = ProducerIdentity(handle.transactional_id, handle.producer_id, handle.producer_epoch)
        return self.outsider.end([identity], commit=commit)[handle.transactional_id]

    def open_foreign(self, transactional_id: str, topic: str, partition: int) -> Producer:
        """Open a foreign transaction with one record in ``topic``; it holds back readers until it ends."""
        config = {
            "bootstrap.servers": self.bootstrap_servers,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
        }
        producer = Producer(config)
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(topic, b"foreign", partition=partition)
        assert producer.flush(10) == 0
        return producer


@contextlib.contextmanager
def playing(kafka: KafkaService, root: Path, **sink_arguments: Any) -> Iterator[Play]:
    play = Play(kafka, root, **sink_arguments)
    try:
        yield play
    finally:
        play.close()


def driver_of(play: Play, sinks: Sequence[KafkaSink], *, add_sink: str | None = None) -> Coordinator:
    """A driver on the play's checkpoint with sinks other than those of the play."""
    overrides = Overrides(added_sinks={add_sink} if add_sink else frozenset())
    opened.append(Coordinator(sinks, LocalFiles(play.root / "twopc"), settings=Settings(overrides=overrides)))
    return opened[-1]


def fed(plays: Sequence[Play], rows: Sequence[Sequence[str]]) -> Tasks:
    """An engine that writes the same rows into several sinks."""
    return Tasks(plays[0], rows, sinks=[play.sink for play in plays])


@contextlib.contextmanager
def at(point: str, action: Callable[[], object], *, passage: int = 1) -> Iterator[None]:
    """Run ``action`` once, when the body passes ``point``; fails if the body never passes it."""
    happened = False

    def act() -> None:
        nonlocal happened
        happened = True
        action()

    crash_points.arm(point, act, passage=passage)
    try:
        yield
    finally:
        crash_points._armed.pop(point, None)
    assert happened, f"the crash point {point} was never reached, so nothing was tested"


def die() -> None:
    """Die as a killed driver does: it handles no error, and so ends no transaction."""
    vanish()
    raise InjectedFault("dead")


def crash(driver: Coordinator, play: Query, batch: int, rows: Sequence[Sequence[str]], point: str) -> None:
    """Let the driver die at ``point`` of a batch."""
    with pytest.raises(InjectedFault), at(point, die):
        driver.process(play.batch(batch), Tasks(play, rows))


def abort_in_one_partition(play: Play, handle: KafkaHandle) -> None:
    """What an operator does with kafka-transactions.sh abort, in the first output partition. The coordinator does not notice."""
    where = min(one for one in handle.topic_partitions() if one.startswith(f"{play.topic}:"))
    place = TopicPartition(play.topic, int(where.rpartition(":")[2]))
    play.outsider._connection.admin.abort_transaction(
        AbortTransactionSpec(place, handle.producer_id, handle.producer_epoch)
    )
    assert play.describe(handle.transactional_id).state == "Ongoing"


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Check repeatedly until the condition holds. Return False if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def spied_read_backs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the offsets of the records that are read back; the list grows as it happens."""
    offsets: list[int] = []
    really = KafkaDecisionLog._read_back

    def spy(ledger: KafkaDecisionLog, offset: int, value: bytes) -> None:
        really(ledger, offset, value)
        offsets.append(offset)

    monkeypatch.setattr(KafkaDecisionLog, "_read_back", spy)
    return offsets


def work_of(play: Play, batch: int, *, driver_epoch: int, counter: int = 1, committed_through: int = -1) -> Work:
    """The work that a driver of ``driver_epoch`` hands its tasks."""
    return Work(
        batch=play.batch(batch),
        attempt=Attempt(driver_epoch, counter),
        driver_epochs={play.name: driver_epoch},
        committed_through=committed_through,
        mode=Write(),
        timeout_ms=None,
    )


def writer_of(play: Play, work: Work, partition: int) -> KafkaWriter:
    """The writer of one task attempt."""
    return play.sink.create_writer(attempt_of(work, play.name, partition))
