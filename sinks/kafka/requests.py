"""Kafka's requests about transactions: how each is built, and what its response reports.

Sources: KIP-98 (EndTxn, InitProducerId), KIP-664 (DescribeTransactions, ListTransactions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sinks.kafka.handle import ProducerIdentity

#: Transactions V1, as librdkafka speaks them (its own EndTxn is <= v3): one family for a transaction's whole life, so that
#: a repeated commit is answered NONE. v5 (KIP-890) would answer INVALID_TXN_STATE to one that v3 has committed.
_END_TXN_VERSION: Final = 3
_INIT_PRODUCER_ID_VERSION: Final = 4
_TRANSACTION_COORDINATOR: Final = 1
#: How long a transaction of the fenced id might live; nobody begins one.
_FENCING_TIMEOUT_MS: Final = 60_000

NONE: Final = "NONE"
#: No response: it is unknown what the broker did.
NO_ANSWER: Final = "NO_ANSWER"
CONCURRENT: Final = "ConcurrentTransactionsError"
#: A newer producer has initialised the id.
FENCED: Final = frozenset({"ProducerFencedError", "InvalidProducerEpochError"})
NOT_FOUND: Final = "TransactionalIdNotFoundError"
NOT_AUTHORIZED: Final = "TransactionalIdAuthorizationFailedError"
#: Error codes of a broker that does not coordinate the id. NOT_COORDINATOR can follow a successful append, so none of them
#: reports an outcome.
MOVED: Final = frozenset(
    {
        kafka_errors.NotCoordinatorError.errno,
        kafka_errors.CoordinatorNotAvailableError.errno,
        kafka_errors.CoordinatorLoadInProgressError.errno,
    }
)


@dataclass(frozen=True)
class Description:
    """A coordinator's report on a transactional id.

    Attributes:
        error: ``NONE``, ``NO_ANSWER`` or kafka-python's name of the error; unless NONE, the rest means nothing.
        state: of the transaction, such as ``Ongoing`` (``TransactionState`` in Kafka).
        producer_id: of the id's current producer.
        producer_epoch: likewise.
        timeout_ms: how long the transaction may stay open.
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


def error_name(code: int) -> str:
    """kafka-python's name of an error code."""
    return str(kafka_errors.for_code(code).__name__)


def find_coordinators(transactional_ids: Collection[str]) -> Any:
    """Which brokers coordinate the ids."""
    return FindCoordinatorRequest(
        key_type=_TRANSACTION_COORDINATOR, coordinator_keys=list(transactional_ids), min_version=4
    )


def describe(transactional_ids: Collection[str]) -> Any:
    """The current transactions of the ids; :func:`descriptions_in` reads the response."""
    return DescribeTransactionsRequest(transactional_ids=list(transactional_ids))


def descriptions_in(response: Any) -> Mapping[str, tuple[int, Description]]:
    """The error code and the description, by transactional id."""
    return {state.transactional_id: (state.error_code, _description(state)) for state in response.transaction_states}


def _description(state: Any) -> Description:
    return Description(
        NONE,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        partitions=frozenset(f"{row.topic}:{partition}" for row in state.topics for partition in row.partitions),
    )


def end(identity: ProducerIdentity, *, commit: bool) -> Any:
    """Commit or abort the transaction of exactly this producer."""
    return EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
        max_version=_END_TXN_VERSION,
    )


def init_producer_id(identity: ProducerIdentity) -> Any:
    """Abort what is open and bump the epoch."""
    return InitProducerIdRequest(
        transactional_id=identity.transactional_id,
        transaction_timeout_ms=_FENCING_TIMEOUT_MS,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        max_version=_INIT_PRODUCER_ID_VERSION,
    )


def list_ongoing() -> Any:
    """The open transactions that one broker coordinates."""
    return ListTransactionsRequest(state_filters=["Ongoing"])
