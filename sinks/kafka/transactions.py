"""Requests about transactions of other processes: describe, end, fence, list.

Each request is sent once; ``sinks.kafka.retry`` repeats those without a final report.
Sources: Kafka ``TransactionCoordinator.scala``; KIP-98 (EndTxn, InitProducerId), KIP-664 (Describe/ListTransactions).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from sinks.kafka.broker_connection import BrokerConnection
from sinks.kafka.coordinators import Coordinators
from sinks.kafka.handle import ProducerIdentity
from sinks.kafka.reports import NONE, Description, Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)

#: Transactions V1, as librdkafka speaks them (its own EndTxn is <= v3): one family for a transaction's whole life, so that
#: a repeated commit is answered NONE. v5 (KIP-890) would answer INVALID_TXN_STATE to one that v3 has committed.
_END_TXN_VERSION: Final = 3
_INIT_PRODUCER_ID_VERSION: Final = 4
_FENCING_TIMEOUT_MS: Final = 60_000


def current_producer(transactional_id: str) -> ProducerIdentity:
    """Stands for whichever producer has the id now. Fencing it creates the id if absent."""
    return ProducerIdentity(transactional_id, -1, -1)


class TransactionClient:
    """A client of a cluster's transaction coordinators. Thread-safe. Raises as :class:`BrokerConnection` does."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._connection = BrokerConnection(config)
        self._coordinators = Coordinators(self._connection)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self._connection.cluster_id

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, Description]:
        """DescribeTransactions, one request per coordinator. An error concerns its own id only."""
        reports = self._coordinators.request(
            transactional_ids,
            lambda ids: DescribeTransactionsRequest(transactional_ids=list(ids)),
            lambda response: {
                state.transactional_id: (state.error_code, _description(state)) for state in response.transaction_states
            },
        )
        return {tid: found if isinstance(found, Description) else Description(found) for tid, found in reports.items()}

    def end(self, identities: Sequence[ProducerIdentity], *, commit: bool = True) -> dict[str, str]:
        """EndTxn for each, all in flight together. Returns NONE or the error's name, by transactional id."""
        return self._each(
            identities,
            lambda identity: EndTxnRequest(
                transactional_id=identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                committed=commit,
                max_version=_END_TXN_VERSION,
            ),
        )

    def fence(self, identities: Sequence[ProducerIdentity]) -> dict[str, str]:
        """InitProducerId for each: aborts what is open and bumps the epoch, so that the writer is fenced wherever it is.

        If a newer producer has initialised the id, the broker leaves it alone and reports one of :data:`FENCED` (KIP-360), but
        only while the id has no open transaction: an open one is aborted whatever its epoch
        (``prepareInitProducerIdTransit``). :func:`current_producer` is fenced in any case. Returns as :meth:`end`.
        """
        return self._each(
            identities,
            lambda identity: InitProducerIdRequest(
                transactional_id=identity.transactional_id,
                transaction_timeout_ms=_FENCING_TIMEOUT_MS,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                max_version=_INIT_PRODUCER_ID_VERSION,
            ),
        )

    def list_open(self, prefix: str) -> Listing:
        """Transactional ids that start with ``prefix`` and have an open transaction, from all brokers.

        A broker leaves out ids without the Describe right and reports no error: check the right beforehand.
        """
        nodes = self._connection.nodes

        async def list_all() -> list[Any]:
            request = ListTransactionsRequest
            sent = [self._connection.send(request(state_filters=["Ongoing"]), node) for node in nodes]
            return [await response for response in sent]

        try:
            outcomes = self._connection.run(list_all)
        except kafka_errors.KafkaError as error:
            logger.warning("open transactions could not be listed: %s", error)
            return Listing((), complete=False)
        listed = [outcome for outcome in outcomes if not isinstance(outcome, Exception) and not outcome.error_code]
        found = {row.transactional_id for response in listed for row in response.transaction_states}
        ids = tuple(sorted(tid for tid in found if tid.startswith(prefix)))
        return Listing(ids, complete=bool(nodes) and len(listed) == len(nodes))

    def _each(self, identities: Sequence[ProducerIdentity], build: Callable[[ProducerIdentity], Any]) -> dict[str, str]:
        by_id = {identity.transactional_id: identity for identity in identities}
        reports = self._coordinators.request(
            list(by_id),
            lambda ids: build(by_id[ids[0]]),
            lambda response: {"": (response.error_code, NONE)},  # the response does not repeat the id
            one_by_one=True,
        )
        return {tid: str(report) for tid, report in reports.items()}


def _description(state: Any) -> Description:
    return Description(
        NONE,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        partitions=frozenset(f"{row.topic}:{partition}" for row in state.topics for partition in row.partitions),
    )
