"""Provide the drivers' producer. Only this producer writes decisions and barriers.

All drivers of a sink use the same transactional id, so the broker itself guarantees that only one driver can write.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from tenacity import wait_none

from twopc.crash_points import crash_point
from twopc.errors import DecisionInDoubtError, FatalError, FencedError, RetriableError
from twopc.retry import retrying
from twopc.sinks.kafka.acknowledged import flush_all
from twopc.sinks.kafka.client_log import ClientLog
from twopc.sinks.kafka.errors import (
    SERVING,
    cause_of,
    error_of,
    is_fenced,
    is_forgotten,
    ledger_changed,
    ledger_gone,
    on_ids,
    on_topic,
    translate,
    translated,
    wrong_clock,
)
from twopc.sinks.kafka.handle import driver_id
from twopc.sinks.kafka.identity import UNKNOWN, Identity
from twopc.sinks.kafka.idle import keep_serving
from twopc.sinks.kafka.producer import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

    from twopc.errors import TwoPhaseCommitError
    from twopc.sinks.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

_DRIVER_TRANSACTION_TIMEOUT_MS: Final = 60_000
#: How long librdkafka waits before it resends a request, minus 20 % jitter (``rd_kafka_buf_retry``).
_RETRY_BACKOFF_MS: Final = 100
#: A commit that took less time was sent only once. If it took longer, librdkafka may have repeated the request after a lost
#: response (rule 12).
_SLOW_COMMIT_S: Final = _RETRY_BACKOFF_MS / 2 / 1000


class DriverProducer:
    """A driver's producer. Creating this producer fences the previous driver. The next driver fences this producer.

    The fence ends when the brokers forget the transactional id. After that, an abort would register the id again, even if this
    producer was fenced. So this producer writes nothing after the brokers have forgotten its id.

    Attributes:
        repeats: whether some commit may have been sent twice. Such a commit may have been fenced even though librdkafka reports
            success. Or the second request may end a later transaction too early (KAFKA-17754).
    """

    def __init__(self, settings: KafkaSettings, defaults: Mapping[str, str]) -> None:
        """Initialize the drivers' transactional id. The user's options override ``defaults``."""
        self._settings = settings
        self._ledger = settings.ledger
        self._timeout_s = settings.timeout_ms / 1000
        self._transactional_id = driver_id(settings.name)
        config = {**defaults, **settings.producer_config()}
        silence_ms = config.get("socket.timeout.ms", self._lives_ms)
        self._client_log = ClientLog()
        self._identity = Identity(config, self._client_log)
        self._ended = ""  # why this producer can no longer write
        self.repeats = False
        self._using = threading.Lock()
        self._producer = Producer(
            {
                **config,
                **self._identity.options,
                "transactional.id": self._transactional_id,
                # A deleted ledger must stay deleted, because a new one has other settings and none of the decisions.
                "allow.auto.create.topics": "false",
                "transaction.timeout.ms": str(self._lives_ms),
                "message.timeout.ms": str(self._lives_ms),
                # librdkafka rejects a wait that is longer than the transaction timeout.
                "socket.timeout.ms": str(min(int(silence_ms), self._lives_ms)),
                "retry.backoff.ms": str(_RETRY_BACKOFF_MS),
                "retry.backoff.max.ms": str(10 * _RETRY_BACKOFF_MS),
                "linger.ms": "0",
                # A record's parts must fit, regardless of the settings for rows. The broker limits the size of batches,
                # so each part is a separate batch.
                "batch.num.messages": "1",
                "message.max.bytes": "1000000",
                "queue.buffering.max.kbytes": "1048576",
                "queue.buffering.max.messages": "100000",
            },
            logger=self._identity,
        )
        acquiring = f"acquiring the ledger {self._ledger} as {self._transactional_id}"
        with translated(acquiring, right=on_ids("Write", self._transactional_id)):
            connect(self._producer, self._ledger, timeout_s=self._timeout_s)
            self._producer.init_transactions(self._timeout_s)
            self._producer_id = self._read_producer_id()
        keep_serving(self)
        crash_point("driver.fenced")

    @property
    def _lives_ms(self) -> int:
        # The brokers allow the tasks' timeout, but possibly not a full minute (transaction.max.timeout.ms).
        return min(_DRIVER_TRANSACTION_TIMEOUT_MS, self._settings.transaction_timeout_ms)

    def write(self, values: Sequence[tuple[int, bytes]], *, point: str | None) -> tuple[int, int]:
        """Write ``(partition, value)`` pairs in one committed transaction. ``point`` is the crash point before the commit.

        Returns:
            the first record's offset, and the last record's offset. Raises the same errors as :meth:`DecisionLog.append`.
        """
        with self._using:
            return self._write(values, point)

    def serve_idle(self) -> None:
        """See :class:`~twopc.sinks.kafka.idle.Idle`. A write reads the events itself."""
        if self._using.acquire(blocking=False):
            try:
                with suppress(*SERVING):  # the next write reports the error
                    self._producer.poll(0)
            finally:
                self._using.release()

    def _write(self, values: Sequence[tuple[int, bytes]], point: str | None) -> tuple[int, int]:
        if self._ended:
            raise FatalError(self._ended)
        written: list[Message] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            failures.append(error) if error else written.append(message)

        try:
            self._producer.begin_transaction()
            for partition, value in values:
                self._producer.produce(self._ledger, value, partition=partition, on_delivery=delivered)
            until = time.monotonic() + self._lives_ms / 1000
            left = flush_all(self._producer.flush, silence_s=self._timeout_s, until=until)
            if failures or left:
                found = cause_of(self._producer, failures[0]) if failures else KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001
                raise KafkaException(found)
        except SERVING as error:
            refused = self._refused(error)
            # A late EndTxn for the previous record may have committed this record (KAFKA-17754). Only a successful abort
            # disproves that.
            if not self._ended and not self._abort() and not isinstance(refused, FencedError):
                raise DecisionInDoubtError(
                    f"{refused}. The abort also failed, so the record may have been committed. No data is lost. Restart the "
                    "query, which will then read the outcome"
                ) from error
            raise refused from error
        if point:
            crash_point(point)
        began = time.monotonic()
        try:
            self._commit()
        finally:
            self.repeats |= time.monotonic() - began > _SLOW_COMMIT_S
        first, last = written[0].offset(), written[-1].offset()
        if first is None or last is None:
            raise AssertionError("a delivered message has an offset")
        return first, last

    def _refused(self, error: KafkaException | SystemError) -> TwoPhaseCommitError:
        inner = error_of(error)
        if is_forgotten(inner):
            self._end()
            return FatalError(self._ended)
        doing, right = f"writing to the ledger {self._ledger}", on_topic("Write", self._ledger)
        known = (
            ledger_gone(inner, self._ledger) or wrong_clock(inner, doing) or ledger_changed(inner, self._ledger, doing)
        )
        found = known or translate(error, doing, right)
        return type(found)(f"{found}{self._client_log.said()}") if isinstance(found, RetriableError) else found

    def _commit(self) -> None:
        """Commit. If the commit fails with a retriable error, try again.

        The decision itself is never retried (rule 12).
        """
        lives_s = self._lives_ms / 1000
        deadline = time.monotonic() + lives_s

        def commit() -> None:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                inner = error_of(error)
                if is_fenced(inner):
                    raise FencedError(
                        f"{self._transactional_id} was fenced while it was committing to the ledger {self._ledger}. Either a "
                        "newer driver has acquired the sink and will read the outcome, or this driver was paused for longer "
                        "than its transaction timeout. Restart the query, unless the newer driver is the one that should run"
                    ) from error
                if is_forgotten(inner):  # the id may have been idle since a commit whose response was lost
                    self._end()
                    raise
                # Only a successful abort proves that the commit before it failed.
                if inner.txn_requires_abort() and self._abort():
                    raise RetriableError(f"the ledger {self._ledger} rejected a record: {inner.str()}") from error
                raise

        try:
            # Do not pause, because librdkafka waits for the brokers before it raises a retriable error.
            retrying(_is_retriable, timeout_s=lives_s, backoff=wait_none())(commit)
        except KafkaException as error:
            raise DecisionInDoubtError(
                f"the commit of a record to the ledger {self._ledger} received no response ({error_of(error).str()}), "
                "so its outcome is unknown. No data is lost. When the brokers respond again, restart the query, which "
                f"will then read the outcome{self._client_log.said()}"
            ) from error

    def _abort(self) -> bool:
        """Abort the transaction. Return whether the abort proves that the transaction is not committed and never will be."""
        try:
            self._producer.abort_transaction(self._timeout_s)
            producer_id = self._read_producer_id()
        except SERVING as error:
            text = "a transaction in the ledger %s could not be aborted. The next driver will abort it. Cause: %s"
            logger.warning(text, self._ledger, error)
            return False
        # If the brokers have forgotten the id, librdkafka registers it again within the abort, which then succeeds (rule 1).
        if producer_id != self._producer_id:
            self._end()
        return self._producer_id == producer_id != UNKNOWN[0]

    def _read_producer_id(self) -> int:
        self._producer.poll(0)  # read the log lines so far
        return self._identity.known[0]

    def _end(self) -> None:
        """Write no more, because a newer driver may have fenced this one before the brokers forgot the id."""
        self._ended = (
            f"the ledger {self._ledger}: the brokers have forgotten the transactional id {self._transactional_id}, because it "
            "was idle for longer than their transactional.id.expiration.ms (7 days by default). Another driver may have taken "
            "over in the meantime, so this driver stops, and has not written its record. No row is lost or duplicated. Restart "
            "the query, unless another driver is running. If the time between batches may exceed this limit, raise the setting"
        )


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and bool(error_of(error).retriable())
