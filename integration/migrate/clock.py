"""Compare a broker's clock with this machine's clock. To read the broker's clock, create a topic and write a record to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from twopc.errors import RetriableError, TwoPhaseCommitError
from twopc.integration.migrate.own_topic import own_topic
from twopc.integration.preflight.findings import Finding, Result
from twopc.integration.preflight.stand_in import topic_prefix
from twopc.sinks.kafka.errors import on_topic, translate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import KafkaError

    from twopc.integration.preflight.target import Target

_CHECK: Final = "clock"
#: A difference of up to a second is not reported. By default, a hand-over of a half-written batch tolerates a minute. If every
#: batch is finished, a cut-over tolerates no difference, and its error names the clocks as a possible cause.
_TOLERATED_MS: Final = 1_000


def check_clock(target: Target) -> Iterator[Finding]:
    """Report a difference between the two clocks, unless the broker's response time can explain it."""
    subject = target.sink.bootstrap_servers
    try:
        ahead_ms = _ahead_ms(target)
    except TwoPhaseCommitError as error:
        why = f"the broker's clock was not compared with this machine's clock: {error}"
        fix = (
            f"Grant Create, Write and Delete on topics with the prefix '{topic_prefix(target.sink)}', or compare the clocks "
            "yourself"
        )
        yield Finding(_CHECK, subject, Result.WARN, why, fix)
        return
    if abs(ahead_ms) <= _TOLERATED_MS:
        yield Finding(
            _CHECK, subject, Result.PASS, "the broker's clock agrees with this machine's clock, to the second"
        )
    else:
        where = "ahead of" if ahead_ms > 0 else "behind"
        why = f"the broker's clock is {abs(ahead_ms) / 1000:.1f} s {where} this machine's clock"
        fix = (
            "Synchronize both clocks with a time server. A cut-over uses timestamps to find the rows of a half-written "
            "batch, and rows that the checkpoint does not record. Until the clocks agree, pass --clock-skew-ms or --start-offsets"
        )
        yield Finding(_CHECK, subject, Result.WARN, why, fix)


def _ahead_ms(target: Target) -> int:
    """Return the minimum number of ms by which the broker's clock is ahead.

    The result is negative if the broker's clock is behind, and 0 if no difference is certain.
    """
    topic, timeout_s = f"{target.stand_in.ledger}-clock", target.sink.timeout_ms / 1000
    with own_topic(target.admin, topic, timeout_s, {"message.timestamp.type": "LogAppendTime"}):
        producer = Producer({**target.sink.connection_config(), "linger.ms": 0, "log_level": 0})
        _stamped(producer, topic, timeout_s)  # not timed: the first record has to wait for the topic's leader
        before_ms = _now_ms()
        at_ms = _stamped(producer, topic, timeout_s)
        after_ms = _now_ms()
    return at_ms - min(max(at_ms, before_ms), after_ms)


def _stamped(producer: Producer, topic: str, timeout_s: float) -> int:
    """Write a record. Return the time when the broker accepted the record, by the broker's clock, in ms since 1970 UTC."""
    stamps: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is None:
            stamps.append(message.timestamp()[1])
        else:
            failures.append(error)

    producer.produce(topic, b"clock", on_delivery=delivered)
    producer.flush(timeout_s)
    if failures:
        raise translate(failures[0], f"writing to {topic}", on_topic("Write", topic))
    if not stamps:
        raise RetriableError(f"{topic}: a record was not acknowledged within {timeout_s:.0f} s")
    return stamps[0]


def _now_ms() -> int:
    return int(time.time() * 1000)
