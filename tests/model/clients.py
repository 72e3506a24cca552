"""Readers, admin client and transaction client of the model's cluster.

A leader that is cut off may answer a read (rule 1). Each request of the transaction client can be lost on its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import OffsetSpec

from tests.model.broker import NONE, NOT_FOUND, TopicPartition
from tests.model.network import NETWORK, RESEND_S, Message
from tests.model.simulation import LostError
from twopc.sinks.kafka.partition_reports import PartitionReport, TopicReport, split
from twopc.sinks.kafka.reports import NO_ANSWER, Description, Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tests.model.broker import Entry
    from twopc.sinks.kafka.handle import ProducerIdentity


class Consumer:
    """A ``read_committed`` consumer of one partition."""

    def __init__(self, _config: Mapping[str, Any]) -> None:
        self._where: TopicPartition | None = None
        self._position = 0
        self._fetched: list[Entry] = []
        self._reported_end = False

    def list_topics(self, _topic: str, timeout: float) -> None:
        """A connection; no rule depends on when it is made."""

    def assign(self, partitions: Sequence[Any]) -> None:
        (wanted,) = partitions
        self._where, self._position = (wanted.topic, wanted.partition), wanted.offset
        self._fetched, self._reported_end = [], False

    def unassign(self) -> None:
        self._where = None

    def poll(self, timeout: float) -> Message | None:
        assert self._where is not None
        if self._fetched:
            return self._next()
        if self._position < NETWORK.cluster.logs[self._where].start:
            return Message(-1, error=KafkaError._AUTO_OFFSET_RESET)
        where, start = self._where, self._position
        log = NETWORK.cluster.logs[where]
        until = max(start, NETWORK.lagging(log, log.end))
        try:
            self._fetched, position = NETWORK.simulation.request(
                "fetch", lambda: NETWORK.cluster.fetch(where, start, until=until)
            )
        except LostError:
            return None
        if position > self._position:
            self._position, self._reported_end = position, False
        if self._fetched:
            return self._next()
        if not self._reported_end:
            self._reported_end = True
            return Message(self._position, error=KafkaError._PARTITION_EOF)
        NETWORK.simulation.sleep(min(timeout, RESEND_S))
        return None

    def _next(self) -> Message:
        entry = self._fetched.pop(0)
        return Message(entry.offset, entry.key, entry.value)

    def close(self) -> None: ...


class AdminClient:
    """The requests that the ledger makes."""

    def __init__(self, _config: Mapping[str, Any]) -> None: ...

    def list_offsets(
        self, wanted: Mapping[Any, OffsetSpec], *, request_timeout: float, isolation_level: Any
    ) -> dict[Any, Any]:
        del request_timeout
        earliest, committed = OffsetSpec.earliest(), int(isolation_level.value) == 1

        def ask() -> dict[Any, int]:
            found = {}
            for where, spec in wanted.items():
                log = NETWORK.cluster.logs[where.topic, where.partition]
                latest = NETWORK.lagging(log, log.stable if committed else log.end)
                found[where] = log.start if spec is earliest else max(latest, log.start)
            return found

        try:
            found = NETWORK.simulation.request("offsets", ask)
        except LostError:
            found = dict.fromkeys(wanted, -1001)  # librdkafka returns this offset without raising an error
        return {where: _Done(SimpleNamespace(offset=offset)) for where, offset in found.items()}

    def list_topics(self, *, timeout: float) -> None:
        """Leaders do not move in the model."""

    def delete_records(self, below: Iterable[Any], *, request_timeout: float) -> dict[Any, Any]:
        del request_timeout
        for where in below:
            NETWORK.simulation.request("truncate", _truncating(where))
        return {where: _Done(None) for where in below}


def _truncating(where: Any) -> Callable[[], None]:
    return lambda: NETWORK.cluster.truncate((where.topic, where.partition), where.offset)


class _Done:
    def __init__(self, found: Any) -> None:
        self._found = found

    def result(self) -> Any:
        return self._found


class TransactionClient:
    """See ``twopc.sinks.kafka.transactions``. Each request can be lost on its own."""

    cluster_id = "model"

    def __init__(self, _config: Mapping[str, Any]) -> None: ...

    def coordinator_of(self, _transactional_id: str) -> str:
        return "the coordinator"

    def connection_errors(self) -> list[str]:
        return []

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, Description]:
        def ask() -> dict[str, Description]:
            return {tid: _description(tid) for tid in transactional_ids}

        try:
            return NETWORK.simulation.request("describe", ask)
        except LostError:
            return {tid: Description(NO_ANSWER) for tid in transactional_ids}

    def end(self, identities: Sequence[ProducerIdentity], *, commit: bool = True) -> dict[str, str]:
        answers = {}
        for identity in identities:
            send = _ending(identity, commit=commit)
            NETWORK.sent_ends.append(send)
            answers[identity.transactional_id] = _answered("end by hand", send)
        return answers

    def fence(self, identities: Sequence[ProducerIdentity]) -> dict[str, str]:
        answers = {}
        for identity in identities:
            send = _fencing(identity)
            NETWORK.sent_inits.append(send)
            answers[identity.transactional_id] = _answered("fence", send)
        return answers

    def list_open(self, prefix: str) -> Listing:
        def ask() -> tuple[str, ...]:
            return tuple(
                sorted(
                    known.transactional_id
                    for known in NETWORK.cluster.ongoing()
                    if known.transactional_id.startswith(prefix)
                )
            )

        try:
            return Listing(NETWORK.simulation.request("list", ask), complete=True)
        except LostError:
            return Listing((), complete=False)

    def topics(self, topics: Collection[str]) -> dict[str, TopicReport]:
        """Topics are never recreated in the model."""

        def ask() -> dict[str, TopicReport]:
            logs = NETWORK.cluster.logs
            return {topic: TopicReport(NONE, topic, {n: 0 for at, n in logs if at == topic}) for topic in topics}

        try:
            return NETWORK.simulation.request("topics", ask)
        except LostError:
            return dict.fromkeys(topics, TopicReport(NO_ANSWER))

    def partitions(self, leaders: Mapping[str, int]) -> dict[str, PartitionReport]:
        def ask() -> dict[str, PartitionReport]:
            return {where: _writers(where) for where in leaders}

        try:
            return NETWORK.simulation.request("producers", ask)
        except LostError:
            return dict.fromkeys(leaders, PartitionReport(NO_ANSWER))

    def close(self) -> None: ...


def _writers(where: str) -> PartitionReport:
    log = NETWORK.cluster.logs[split(where)]
    return PartitionReport(NONE, {(one, log.epochs[one]): first for one, first in log.open.items()})


def _answered(kind: str, send: Callable[[], str]) -> str:
    try:
        return NETWORK.simulation.request(kind, send)
    except LostError:
        return NO_ANSWER


def _ending(identity: ProducerIdentity, *, commit: bool) -> Callable[[], str]:
    return lambda: NETWORK.cluster.end(
        identity.transactional_id, identity.producer_id, identity.producer_epoch, commit=commit
    )


def _fencing(identity: ProducerIdentity) -> Callable[[], str]:
    return lambda: NETWORK.cluster.init(identity.transactional_id, 60_000, expected=identity.producer_epoch)[0]


def _description(transactional_id: str) -> Description:
    known = NETWORK.cluster.transactions.get(transactional_id)
    if known is None:
        return Description(NOT_FOUND)
    return Description(
        NONE,
        state=known.state.value,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        partitions=frozenset(f"{topic}:{number}" for topic, number in known.partitions),
    )
