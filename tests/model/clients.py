"""The clients that the product uses, against the model's cluster: librdkafka's producer, consumer and admin, EndTxn by hand.

They behave as seen on the real ones: a lost EndTxn is sent again inside ``commit_transaction()``, and then success may be
reported whatever became of the record (rule 12); a read may be answered by a leader that has been cut off (rule 1).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from sinks.kafka_transactions import NO_ANSWER, Description, Listing, ProducerIdentity
from tests.model.broker import CONCURRENT, FENCED, INVALID_STATE, NONE, NOT_FOUND, Record, TopicPartition
from tests.model.simulation import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.model.broker import Cluster, Entry, Log
    from tests.model.simulation import Simulation

_RESEND_S: Final = 0.1
_AGAIN_S: Final = 0.02
_TOO_LARGE: Final = "MessageSizeTooLargeError"
_CODES: Final = {
    _TOO_LARGE: KafkaError.MSG_SIZE_TOO_LARGE,
    FENCED: KafkaError._FENCED,
    INVALID_STATE: KafkaError.INVALID_TXN_STATE,
}


class Network:
    """Which simulation the clients belong to, and what the nemesis has prepared for their next requests."""

    simulation: Simulation
    #: Kinds of requests that can be lost; what a producer sends is resent by the client itself, once each.
    losable: Final = frozenset({"end", "end by hand", "describe", "fence", "list", "offsets", "fetch"})

    def begin(self, simulation: Simulation) -> None:
        """Everything of the history before is forgotten."""
        self.simulation = simulation
        self.sent_ends: list[Callable[[], str]] = []  #: every EndTxn for a task's transaction: each may come again
        self.delayed: list[Callable[[], str]] = []  #: EndTxn of drivers that nobody has answered
        self.stale: float = 0.0  #: how often a read is answered by a leader that was cut off

    @property
    def cluster(self) -> Cluster:
        return self.simulation.cluster

    def lagging(self, log: Log, end: int) -> int:
        """Where a cut-off leader believes the end to be. One that knows of a truncation has seen what was before it."""
        chance = self.simulation.chance
        cut_off = self.stale and chance.random() < self.stale and log.truncated_at < end
        return chance.randint(log.truncated_at, end) if cut_off else end


NETWORK: Final = Network()


def _raised(code: int, text: str = "", **facts: bool) -> KafkaException:
    return KafkaException(KafkaError(code, text, **facts))


class Message:
    """A record as a consumer or a delivery report gives it."""

    def __init__(self, offset: int, key: bytes | None = None, value: bytes | None = None, error: int = 0) -> None:
        self._offset, self._key, self._value, self._error = offset, key, value, error

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> KafkaError | None:
        return KafkaError(self._error) if self._error else None


@dataclass
class _Queued:
    record: Record
    report: Callable[[KafkaError | None, Message], None]


class Producer:
    """librdkafka's transactional producer."""

    def __init__(self, config: Mapping[str, Any], *, logger: object) -> None:
        del logger
        self._id: str = config["transactional.id"]
        self._timeout_ms = float(config["transaction.timeout.ms"])
        self._only_errors: bool = config.get("delivery.report.only.error", False)
        self._on_delivery = config.get("on_delivery", lambda _error, _message: None)
        self._on_statistics = config.get("stats_cb")
        self._identity = (-1, -1)
        self._queue: dict[TopicPartition, list[_Queued]] = {}
        self._sent: dict[TopicPartition, int] = {}
        self._in_transaction: set[TopicPartition] = set()
        self._failed: str = ""

    def list_topics(self, topic: str, timeout: float = -1) -> SimpleNamespace:
        del timeout
        return _metadata(topic)

    def init_transactions(self, timeout: float) -> None:
        until_ms = NETWORK.simulation.now_ms + timeout * 1000
        while True:
            error, *identity = self._ask("init", lambda: NETWORK.cluster.init(self._id, self._timeout_ms))
            if error == NONE:
                self._identity = (identity[0], identity[1])
                return
            if NETWORK.simulation.now_ms > until_ms:
                raise _raised(KafkaError._TIMED_OUT, retriable=True)
            NETWORK.simulation.sleep(_AGAIN_S)

    def begin_transaction(self) -> None:
        self._require_sound()
        self._in_transaction = set()
        self._sent = {}

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
        **_: object,
    ) -> None:
        if partition < 0:
            partition = sum(key or b"") % len(_metadata(topic).topics[topic].partitions)
        report = on_delivery or self._on_delivery
        self._queue.setdefault((topic, partition), []).append(_Queued(Record(partition, key, value), report))

    def poll(self, _timeout: float) -> int:
        self._send()
        if self._on_statistics is not None:
            partitions: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
            for (topic, number), count in self._sent.items():
                partitions.setdefault(topic, {"partitions": {}})["partitions"][str(number)] = {"txmsgs": count}
            self._on_statistics(
                json.dumps(
                    {
                        "msg_cnt": 0,
                        "eos": dict(zip(("producer_id", "producer_epoch"), self._identity, strict=True)),
                        "topics": partitions,
                    }
                )
            )
        return 0

    def flush(self, _timeout: float) -> int:
        self._send()
        return 0

    def commit_transaction(self, timeout: float) -> None:
        self._send()
        if self._failed:
            raise _raised(_CODES[self._failed], fatal=self._failed == FENCED, txn_requires_abort=self._failed != FENCED)
        self._end(timeout, commit=True)

    def abort_transaction(self, timeout: float) -> None:
        self._queue = {}
        if self._failed == FENCED:
            raise _raised(KafkaError._FENCED, fatal=True)
        self._failed = ""
        self._end(timeout, commit=False)

    def purge(self) -> None:
        self._queue = {}

    def _require_sound(self) -> None:
        if self._failed:
            raise _raised(_CODES[self._failed], fatal=True)

    def _send(self) -> None:
        queue, self._queue = self._queue, {}
        for where, queued in queue.items():
            error, first = self._failed, -1
            if not error and where not in self._in_transaction:
                error = self._open(where)
            if not error:
                records = [entry.record for entry in queued]
                try:
                    error, first = self._ask("produce", self._appending(where, records))
                except RefusedError:
                    error = _TOO_LARGE
            self._sent[where] = self._sent.get(where, 0) + len(queued)
            self._failed = self._failed or (error if error != NONE else "")
            for place, entry in enumerate(queued):
                if error not in {NONE, ""}:
                    entry.report(KafkaError(_CODES.get(error, KafkaError._FENCED)), Message(-1))
                elif not self._only_errors:
                    entry.report(None, Message(first + place))

    def _appending(self, where: TopicPartition, records: list[Record]) -> Callable[[], tuple[str, int]]:
        return lambda: NETWORK.cluster.append(self._id, *self._identity, where, records)

    def _open(self, where: TopicPartition) -> str:
        while True:
            answer = self._ask("open", lambda: NETWORK.cluster.add_partitions(self._id, *self._identity, [where]))
            if answer != CONCURRENT:
                break
            NETWORK.simulation.sleep(_AGAIN_S)
        if answer == NONE:
            self._in_transaction.add(where)
            return ""
        return answer if answer in _CODES else FENCED

    def _end(self, timeout: float, *, commit: bool) -> None:
        if not self._in_transaction:
            return  # librdkafka sends nothing for an empty transaction
        simulation = NETWORK.simulation
        until_ms = simulation.now_ms + timeout * 1000
        resent = False
        identity = self._identity

        def send() -> str:
            return NETWORK.cluster.end(self._id, *identity, commit=commit)

        while True:
            try:
                answer = simulation.request("end", send)
            except LostError:
                NETWORK.delayed.append(send)
                resent = True
                simulation.sleep(_RESEND_S)
                if simulation.now_ms > until_ms:
                    raise _raised(KafkaError._TIMED_OUT, retriable=True) from None
                continue
            if answer == CONCURRENT:
                simulation.sleep(_AGAIN_S)
                continue
            # A resent request may be reported as done, whatever somebody else has made of the transaction meanwhile.
            if answer == NONE or (resent and simulation.chance.random() < 0.5):
                self._in_transaction = set()
                return
            self._failed = FENCED
            raise _raised(KafkaError._FENCED, answer, fatal=True)

    def _ask(self, kind: str, act: Callable[[], Any]) -> Any:
        return NETWORK.simulation.request(kind, act)


class Consumer:
    """A ``read_committed`` consumer assigned to one partition."""

    def __init__(self, _config: Mapping[str, Any]) -> None:
        self._where: TopicPartition | None = None
        self._position = 0
        self._fetched: list[Entry] = []
        self._told_end = False

    def assign(self, partitions: Sequence[Any]) -> None:
        (wanted,) = partitions
        self._where, self._position = (wanted.topic, wanted.partition), wanted.offset
        self._fetched, self._told_end = [], False

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
            self._position, self._told_end = position, False
        if self._fetched:
            return self._next()
        if not self._told_end:
            self._told_end = True
            return Message(self._position, error=KafkaError._PARTITION_EOF)
        NETWORK.simulation.sleep(min(timeout, _RESEND_S))
        return None

    def _next(self) -> Message:
        entry = self._fetched.pop(0)
        return Message(entry.offset, entry.key, entry.value)

    def close(self) -> None: ...


class AdminClient:
    """What the ledger asks of it."""

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
            found = dict.fromkeys(wanted, -1001)  # librdkafka's answer, without an error
        return {where: _Done(SimpleNamespace(offset=offset)) for where, offset in found.items()}

    def delete_records(self, below: Iterable[Any], *, request_timeout: float) -> dict[Any, Any]:
        del request_timeout
        for where in below:
            NETWORK.simulation.request("truncate", _truncating(where))
        return {where: _Done(None) for where in below}

    def describe_topics(self, topics: Any, *, request_timeout: float) -> dict[str, Any]:
        del topics, request_timeout
        return {}


def _truncating(where: Any) -> Callable[[], None]:
    return lambda: NETWORK.cluster.truncate((where.topic, where.partition), where.offset)


class _Done:
    def __init__(self, found: Any) -> None:
        self._found = found

    def result(self) -> Any:
        return self._found


class TransactionClient:
    """See ``sinks.kafka_transactions``: each request may be lost by itself."""

    cluster_id = "model"

    def __init__(self, _config: Mapping[str, Any]) -> None: ...

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
        return {identity.transactional_id: _answered("fence", _fencing(identity)) for identity in identities}

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

    def close(self) -> None: ...


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


def _metadata(topic: str) -> SimpleNamespace:
    numbers = range(sum(name == topic for name, _ in NETWORK.cluster.logs))
    return SimpleNamespace(topics={topic: SimpleNamespace(partitions=dict.fromkeys(numbers))})
