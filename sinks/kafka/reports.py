"""Define the brokers' reports on transactions, and retry requests until every report is final."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tenacity import wait_exponential

from twopc.retry import repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twopc.sinks.kafka.handle import KafkaHandle

NONE: Final = "NONE"
#: No response came, so the outcome at the broker is unknown.
NO_ANSWER: Final = "NO_ANSWER"
CONCURRENT: Final = "ConcurrentTransactionsError"
#: The transaction is in transition, or the response was lost. The next request may bring a final report.
NOT_FINAL: Final = frozenset({CONCURRENT, NO_ANSWER})
#: These reports mean that a newer producer has initialized the id.
FENCED: Final = frozenset({"ProducerFencedError", "InvalidProducerEpochError"})
NOT_FOUND: Final = "TransactionalIdNotFoundError"
NOT_AUTHORIZED: Final = "TransactionalIdAuthorizationFailedError"
#: The first pause is about as long as a commit takes to reach its partitions. Pauses grow slowly. If they doubled, an outcome
#: that exists after 40 ms would be found only after 64 ms.
_BACKOFF: Final = wait_exponential(0.001, exp_base=1.3, max=0.5)


@dataclass(frozen=True)
class Description:
    """A coordinator's report on a transactional id.

    Attributes:
        error: ``NONE``, ``NO_ANSWER`` or kafka-python's name for the error. The other fields are valid only if the error is
            NONE.
        state: the transaction's state, such as ``Ongoing`` (``TransactionState`` in Kafka).
        partitions: the open transaction's partitions, as ``topic:partition``.
        started_ms: when the transaction began, by the coordinator's clock, in ms since 1970 UTC; -1 if no transaction
            is open.
        timeout_ms: how long the coordinator lets the transaction stay open.
    """

    error: str
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: frozenset[str] = frozenset()
    started_ms: int = -1
    timeout_ms: int = -1

    def is_of(self, handle: KafkaHandle) -> bool:
        """Return whether the handle's producer still owns the id. If not, another transaction uses the id."""
        here = (self.producer_id, self.producer_epoch)
        return self.error == NONE and here == (handle.producer_id, handle.producer_epoch)


@dataclass(frozen=True)
class Listing:
    """A list of open transactions. If a broker did not respond, ``complete`` is False, and transactions may be missing."""

    transactional_ids: tuple[str, ...]
    complete: bool


def until_final(
    transactional_ids: Iterable[str], request: Callable[[list[str]], Mapping[str, str]], *, timeout_ms: float
) -> dict[str, str]:
    """Send one request for all ids, then retry with backoff for each id whose report is in :data:`NOT_FINAL`.

    Return the last report for each id as soon as all reports are final, or when ``timeout_ms`` have passed without another report
    becoming final. The total time may exceed ``timeout_ms``.
    """
    reports = dict.fromkeys(transactional_ids, NO_ANSWER)
    deadline = time.monotonic() + timeout_ms / 1000

    def pending() -> list[str]:
        return [tid for tid, report in reports.items() if report in NOT_FINAL]

    def send() -> list[str]:
        nonlocal deadline
        before = pending()
        reports.update(request(before))
        left = pending()
        if len(left) < len(before):
            deadline = time.monotonic() + timeout_ms / 1000
        return left

    if reports:
        repeating(stop=lambda _: time.monotonic() >= deadline, backoff=_BACKOFF)(send)
    return reports


def described(
    describe: Callable[[Sequence[str]], Mapping[str, Description]],
    transactional_ids: Iterable[str],
    *,
    timeout_ms: float,
) -> dict[str, Description]:
    """Describe transactions, and ask again about those whose coordinator does not respond (see :func:`until_final`)."""
    found: dict[str, Description] = {}

    def ask(ids: Sequence[str]) -> dict[str, str]:
        found.update(describe(ids))
        return {tid: found[tid].error for tid in ids}

    until_final(transactional_ids, ask, timeout_ms=timeout_ms)
    return found
