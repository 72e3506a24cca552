"""What brokers report about transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NONE: Final = "NONE"
#: No response: it is unknown what the broker did.
NO_ANSWER: Final = "NO_ANSWER"
CONCURRENT: Final = "ConcurrentTransactionsError"
#: A newer producer has initialised the id.
FENCED: Final = frozenset({"ProducerFencedError", "InvalidProducerEpochError"})
NOT_FOUND: Final = "TransactionalIdNotFoundError"
NOT_AUTHORIZED: Final = "TransactionalIdAuthorizationFailedError"


@dataclass(frozen=True)
class Description:
    """A coordinator's report on a transactional id.

    Attributes:
        error: ``NONE``, ``NO_ANSWER`` or kafka-python's name of the error; unless NONE, the rest means nothing.
        state: the transaction's, such as ``Ongoing`` (``TransactionState`` in Kafka).
        partitions: ``topic:partition`` of the open transaction.
    """

    error: str
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    partitions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Listing:
    """Open transactions; ``complete`` is False when a broker did not respond, so that some may be missing."""

    transactional_ids: tuple[str, ...]
    complete: bool
