"""librdkafka's transactional producer against the model's cluster.

The real one was observed: ``commit_transaction()`` sends a lost EndTxn again by itself, and may then report success whatever
became of the record (rule 12).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

from tests.model.broker import CONCURRENT, FENCED, INVALID_STATE, NONE, Record, TopicPartition
from tests.model.network import NETWORK, RESEND_S, Message, metadata, raised
from tests.model.simulation import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import SimpleNamespace

_RETRY_S: Final = 0.02
_TOO_LARGE: Final = "MessageSizeTooLargeError"
_CODES: Final = {
    _TOO_LARGE: KafkaError.MSG_SIZE_TOO_LARGE,
    FENCED: KafkaError._FENCED,
    INVALID_STATE: KafkaError.INVALID_TXN_STATE,
}


@dataclass
class _Queued:
    record: Record
    report: Callable[[KafkaError | None, Message], None]


class Producer:
    """librdkafka's transactional producer."""

    def __init__(self, config: Mapping[str, Any], *, logger: Any) -> None:
        self._logger = logger
        self._id: str = config["transactional.id"]
        self._timeout_ms = float(config["transaction.timeout.ms"])
        self._on_delivery = config.get("on_delivery", lambda _error, _message: None)
        self._identity = (-1, -1)
        self._queue: dict[TopicPartition, list[_Queued]] = {}
        self._in_transaction: set[TopicPartition] = set()
        self._failed: str = ""

    def list_topics(self, topic: str, timeout: float = -1) -> SimpleNamespace:
        del timeout
        return metadata(topic)

    def init_transactions(self, timeout: float) -> None:
        until_ms = NETWORK.simulation.now_ms + timeout * 1000

        def send() -> tuple[str, int, int]:
            return NETWORK.cluster.init(self._id, self._timeout_ms)

        NETWORK.sent_inits.append(send)
        while True:
            error, *identity = self._ask("init", send)
            if error == NONE:
                self._identity = (identity[0], identity[1])
                acquired = f"Acquired PID{{Id:{identity[0]},Epoch:{identity[1]}}}"
                self._logger.log(logging.DEBUG, "%s [%s] %s", "GETPID", self._id, acquired)
                return
            if NETWORK.simulation.now_ms > until_ms:
                raise raised(KafkaError._TIMED_OUT, retriable=True)
            NETWORK.simulation.sleep(_RETRY_S)

    def begin_transaction(self) -> None:
        self._require_sound()
        self._in_transaction = set()

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
            partition = sum(key or b"") % len(metadata(topic).topics[topic].partitions)
        report = on_delivery or self._on_delivery
        self._queue.setdefault((topic, partition), []).append(_Queued(Record(key, value), report))

    def poll(self, _timeout: float) -> int:
        self._send()
        return 0

    def flush(self, _timeout: float) -> int:
        self._send()
        return 0

    def commit_transaction(self, timeout: float) -> None:
        self._send()
        if self._failed:
            raise raised(_CODES[self._failed], fatal=self._failed == FENCED, txn_requires_abort=self._failed != FENCED)
        self._end(timeout, commit=True)

    def abort_transaction(self, timeout: float) -> None:
        self._queue = {}
        if self._failed == FENCED:
            raise raised(KafkaError._FENCED, fatal=True)
        self._failed = ""
        self._end(timeout, commit=False)

    def _require_sound(self) -> None:
        if self._failed:
            raise raised(_CODES[self._failed], fatal=True)

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
            self._failed = self._failed or (error if error != NONE else "")
            for place, entry in enumerate(queued):
                if error not in {NONE, ""}:
                    entry.report(KafkaError(_CODES.get(error, KafkaError._FENCED)), Message(-1, where=where))
                else:
                    entry.report(None, Message(first + place, where=where))

    def _appending(self, where: TopicPartition, records: list[Record]) -> Callable[[], tuple[str, int]]:
        return lambda: NETWORK.cluster.append(self._id, *self._identity, where, records)

    def _open(self, where: TopicPartition) -> str:
        while True:
            answer = self._ask("open", lambda: NETWORK.cluster.add_partitions(self._id, *self._identity, [where]))
            if answer != CONCURRENT:
                break
            NETWORK.simulation.sleep(_RETRY_S)
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
                simulation.sleep(RESEND_S)
                if simulation.now_ms > until_ms:
                    raise raised(KafkaError._TIMED_OUT, retriable=True) from None
                continue
            if answer == CONCURRENT:
                simulation.sleep(_RETRY_S)
                continue
            # A resent request may be reported as done, even if another client has ended the transaction in the
            # meantime.
            if answer == NONE or (resent and simulation.chance.random() < 0.5):
                self._in_transaction = set()
                return
            self._failed = FENCED
            raise raised(KafkaError._FENCED, answer, fatal=True)

    def _ask(self, kind: str, act: Callable[[], Any]) -> Any:
        return NETWORK.simulation.request(kind, act)
