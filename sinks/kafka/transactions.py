"""Describe, end, fence and list transactions that other processes have opened.

Each request goes to the broker that coordinates the transactional id. This module finds that broker itself, because
kafka-python's admin client never forgets a coordinator, and raises an error at the first bad id. This module sends each
request once. ``twopc.sinks.kafka.reports.until_final`` repeats the requests that have not received a final response.

Sources: Kafka ``TransactionCoordinator.scala``; KIP-98 (EndTxn, InitProducerId), KIP-664 (Describe/ListTransactions).
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from twopc.errors import ConfigurationError
from twopc.sinks.kafka.broker_connection import BrokerConnection
from twopc.sinks.kafka.connection_errors import ConnectionErrors
from twopc.sinks.kafka.lanes import Lanes
from twopc.sinks.kafka.partition_reports import describe_partitions, describe_topics
from twopc.sinks.kafka.reports import NO_ANSWER, NONE, Description, Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from twopc.sinks.kafka.handle import ProducerIdentity
    from twopc.sinks.kafka.partition_reports import PartitionReport, TopicReport

    Build = Callable[[Sequence[str]], Any]  # a function that builds a request about some ids
    #: Reads the error code and the result for each id from a response. A response about one id uses the key "".
    Read = Callable[[Any], Mapping[str, tuple[int, Any]]]

#: librdkafka uses transactions V1 (its own EndTxn is <= v3). All requests about a transaction use V1, so that a broker
#: returns NONE for a repeated commit. v5 (KIP-890) would return INVALID_TXN_STATE for a transaction that v3 has committed.
_END_TXN_VERSION: Final = 3
_INIT_PRODUCER_ID_VERSION: Final = 4
#: The transaction timeout in a fencing request, which begins no transaction. Brokers reject a timeout that is longer
#: than their transaction.max.timeout.ms.
_FENCING_TIMEOUT_MS: Final = 1_000
_TRANSACTION_COORDINATOR: Final = 1
#: New workers bring new ids. If a driver knows the coordinators of more ids than this, it forgets all coordinators that
#: the current request does not need.
_MOST_NODES: Final = 10_000
#: The first version of FindCoordinator that accepts several ids (KIP-699).
_MANY_IDS_VERSION: Final = 4
#: The first version of ListTransactions that accepts an id pattern (KIP-1152, Kafka 4.1).
_PATTERN_VERSION: Final = 2
#: Requests that Kafka 3.0 introduced (KIP-664).
_NEEDED: Final = {"DescribeTransactions": DescribeTransactionsRequest, "ListTransactions": ListTransactionsRequest}
#: A broker that does not coordinate the id returns one of these error codes. NOT_COORDINATOR can follow a successful append, so
#: none of these codes reports an outcome.
_MOVED: Final = frozenset(
    {
        kafka_errors.NotCoordinatorError.errno,
        kafka_errors.CoordinatorNotAvailableError.errno,
        kafka_errors.CoordinatorLoadInProgressError.errno,
    }
)


class BrokersTooOldError(ConfigurationError):
    """The brokers do not support the requests with which a sink inspects its transactions."""


class TransactionClient:
    """Sends requests to a cluster's transaction coordinators. Threads may share this object.

    Raises the same errors as :class:`BrokerConnection`, and also BrokersTooOldError.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._connection = BrokerConnection(config)
        self._lanes = Lanes(self._connection, lambda: BrokerConnection(config))
        self._nodes: dict[str, int] = {}  # the known coordinators, by transactional id
        logs_in = str(config.get("security_protocol", "")).startswith("SASL")
        hint = " (perhaps the broker has rejected the login: check kafka.sasl.*)" if logs_in else ""
        self._errors = ConnectionErrors(hint)
        missing = [name for name, request in _NEEDED.items() if self._connection.does_not_know(request)]
        if missing:
            version = self._connection.broker_version
            self.close()
            raise BrokersTooOldError(
                f"the brokers at {', '.join(config['bootstrap_servers'])} speak the protocol of Kafka {version}, which does "
                f"not include {' and '.join(missing)} (KIP-664). Without these requests, the sink could neither confirm a "
                "prepared transaction nor find it after a crash. Nothing was written. Upgrade the brokers to Kafka 3.0 or "
                "newer"
            )

    def close(self) -> None:
        """Close the connections."""
        self._lanes.close()
        self._connection.close()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self._connection.cluster_id

    def coordinator_of(self, transactional_id: str) -> str:
        """Return the name of the id's last known coordinator, for error messages."""
        node = self._nodes.get(transactional_id)
        return "an unknown coordinator" if node is None else f"broker {node}"

    def connection_errors(self) -> list[str]:
        """Say why brokers have not responded to their last requests, for error messages. No broker is contacted.

        Without these texts, a failed login or TLS handshake, for example, would look like a missing response.
        """
        return self._errors.texts(self._connection.nodes)

    def _send(
        self, requests: Sequence[tuple[Any, ...]], about: Sequence[Collection[str]], *, in_lanes: bool = False
    ) -> Sequence[Any]:
        """Send requests, each about some ids, and note why brokers do not respond."""
        outcomes = (self._lanes if in_lanes else self._connection).send_all(requests)
        self._errors.note((request[1] if len(request) > 1 else None for request in requests), outcomes, about)
        return outcomes

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, Description]:
        """Describe transactions with one request per coordinator. An error for one id does not affect the others."""
        reports = self._request(
            transactional_ids,
            lambda ids: DescribeTransactionsRequest(transactional_ids=list(ids)),
            lambda response: {
                state.transactional_id: (state.error_code, _description(state)) for state in response.transaction_states
            },
        )
        return {tid: found if isinstance(found, Description) else Description(found) for tid, found in reports.items()}

    def end(self, identities: Sequence[ProducerIdentity], *, commit: bool = True) -> dict[str, str]:
        """Send EndTxn concurrently for all producers. Return NONE or the error's name for each transactional id."""
        return self._each(
            identities,
            lambda identity: EndTxnRequest(**asdict(identity), committed=commit, max_version=_END_TXN_VERSION),
        )

    def fence(self, identities: Sequence[ProducerIdentity]) -> dict[str, str]:
        """Send InitProducerId for each id, to abort its open transaction and to fence its writer wherever the writer runs.

        If a producer newer than the given one has initialized the id and has no open transaction, the broker changes nothing
        and reports one of :data:`FENCED` (KIP-360). The broker aborts an open transaction of any epoch
        (``prepareInitProducerIdTransit``). Without a producer id and epoch, the request fences the id's current producer, or
        creates the id if it does not exist. The result has the same form as that of :meth:`end`.
        """
        return self._each(
            identities,
            lambda identity: InitProducerIdRequest(
                **asdict(identity),
                transaction_timeout_ms=_FENCING_TIMEOUT_MS,
                max_version=_INIT_PRODUCER_ID_VERSION,
            ),
        )

    def list_open(self, prefix: str, *, producer_ids: Collection[int] = ()) -> Listing:
        """Ask all brokers for the transactional ids that start with ``prefix`` and have an open transaction.

        With ``producer_ids``, list only the transactional ids of these producers. If the Describe permission on an id is
        missing, a broker omits the id and reports no error, so check the permission first.
        """
        nodes, pattern = self._connection.nodes, self.pattern_of(prefix)
        wanted = {
            "producer_id_filters": list(producer_ids),
            **({"transactional_id_pattern": pattern} if pattern else {}),
        }
        outcomes = self._send(
            [(ListTransactionsRequest(state_filters=["Ongoing"], **wanted), node) for node in nodes], [()] * len(nodes)
        )
        listed = [outcome for outcome in outcomes if not isinstance(outcome, Exception) and not outcome.error_code]
        found = {row.transactional_id for response in listed for row in response.transaction_states}
        ids = tuple(sorted(tid for tid in found if tid.startswith(prefix)))
        return Listing(ids, complete=bool(nodes) and len(listed) == len(nodes))

    def topics(self, topics: Collection[str]) -> dict[str, TopicReport]:
        """See :func:`~twopc.sinks.kafka.partition_reports.describe_topics`."""
        return describe_topics(self._connection, topics, send=self._send)

    def partitions(self, leaders: Mapping[str, int]) -> dict[str, PartitionReport]:
        """See :func:`~twopc.sinks.kafka.partition_reports.describe_partitions`."""
        reports = describe_partitions(self._connection, leaders, send=self._send)
        self._settle({partition: report.error for partition, report in reports.items()})
        return reports

    def pattern_of(self, prefix: str) -> str | None:
        """Build the filter for ids with ``prefix``. Return None if the prefix is empty or the brokers do not support filters.

        Without this filter, each sink would list all sinks' open transactions at every batch.
        """
        if not prefix or self._connection.does_not_know(ListTransactionsRequest, min_version=_PATTERN_VERSION):
            return None
        return f"{re.escape(prefix)}.*"

    def _each(self, identities: Sequence[ProducerIdentity], build: Callable[[ProducerIdentity], Any]) -> dict[str, str]:
        by_id = {identity.transactional_id: identity for identity in identities}
        reports = self._request(
            list(by_id),
            lambda ids: build(by_id[ids[0]]),
            lambda response: {"": (response.error_code, NONE)},  # the response does not repeat the id
            one_by_one=True,
        )
        return {tid: str(report) for tid, report in reports.items()}

    def _request(
        self, transactional_ids: Sequence[str], build: Build, read: Read, *, one_by_one: bool = False
    ) -> dict[str, Any]:
        """Send requests concurrently to the ids' coordinators. With ``one_by_one``, each request names one id.

        Returns:
            for each id, the result of ``read`` or the error's name; NO_ANSWER if no coordinator responded.
        """
        reports: dict[str, Any] = dict.fromkeys(transactional_ids, NO_ANSWER)
        waiting = list(transactional_ids)
        for _ in range(2):  # the second round is for ids whose coordinator has moved; the caller retries after that
            if not waiting:
                break
            reports.update(self._look_up(waiting))
            groups = list(self._groups(waiting, one_by_one=one_by_one))
            requests = [(build(ids), node) for node, ids in groups]
            responses = self._send(requests, [ids for _, ids in groups], in_lanes=True)
            waiting = []
            for (_, ids), response in zip(groups, responses, strict=True):
                rows = {} if isinstance(response, Exception) else read(response)
                for tid in ids:
                    code, found = rows.get(tid) or rows.get("") or (None, NO_ANSWER)
                    if code is None or code in _MOVED:
                        self._nodes.pop(tid, None)
                        waiting.append(tid)
                        reports[tid] = NO_ANSWER
                    else:
                        reports[tid] = found if code == 0 else _error_name(code)
        self._settle(reports)
        return reports

    def _settle(self, reports: Mapping[str, Any]) -> None:
        self._errors.settle({tid for tid, report in reports.items() if report != NO_ANSWER})

    def _look_up(self, transactional_ids: Sequence[str]) -> dict[str, str]:
        """Look up the unknown coordinators. Return the error's name for each rejected id."""
        if len(self._nodes) > _MOST_NODES:
            self._nodes = {tid: self._nodes[tid] for tid in transactional_ids if tid in self._nodes}
        unknown = [tid for tid in transactional_ids if tid not in self._nodes]
        if not unknown:
            return {}
        if self._connection.does_not_know(FindCoordinatorRequest, min_version=_MANY_IDS_VERSION):
            found = self._look_up_each(unknown)
        else:
            request = FindCoordinatorRequest(
                key_type=_TRANSACTION_COORDINATOR, coordinator_keys=unknown, min_version=_MANY_IDS_VERSION
            )
            [response] = self._send([(request,)], [unknown])
            found = {} if isinstance(response, Exception) else {row.key: row for row in response.coordinators}
        self._nodes.update({tid: row.node_id for tid, row in found.items() if row.error_code == 0})
        return {tid: _error_name(row.error_code) for tid, row in found.items() if row.error_code not in {0, *_MOVED}}

    def _look_up_each(self, transactional_ids: Sequence[str]) -> dict[str, Any]:
        """Send one request for each id, concurrently, to brokers that accept only one id per request, such as Redpanda."""
        requests = [
            (FindCoordinatorRequest(key_type=_TRANSACTION_COORDINATOR, key=tid, max_version=_MANY_IDS_VERSION - 1),)
            for tid in transactional_ids
        ]
        sent = self._send(requests, [[tid] for tid in transactional_ids])
        responses = zip(transactional_ids, sent, strict=True)
        return {tid: response for tid, response in responses if not isinstance(response, Exception)}

    def _groups(self, transactional_ids: Sequence[str], *, one_by_one: bool) -> Iterator[tuple[int, list[str]]]:
        """Return the ids whose coordinator is known, grouped by node."""
        known = {tid: node for tid in transactional_ids if (node := self._nodes.get(tid)) is not None}
        for node in sorted(set(known.values())):
            ids = [tid for tid, at in known.items() if at == node]
            yield from ((node, [tid]) for tid in ids) if one_by_one else ((node, ids),)


def _description(state: Any) -> Description:
    return Description(
        NONE,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        partitions=frozenset(f"{row.topic}:{partition}" for row in state.topics for partition in row.partitions),
        started_ms=state.transaction_start_time_ms,
        timeout_ms=state.transaction_timeout_ms,
    )


def _error_name(code: int) -> str:
    return str(kafka_errors.for_code(code).__name__)
