"""Transactions of other processes: describe, end, fence, list. The only user of kafka-python's internals.

librdkafka cannot resume a transaction that another process prepared, and no public API of kafka-python can end one:
the requests are built and routed here, over its admin client's connections (``_manager``, pinned to 3.0.x).
Coordinators are looked up by us, since the admin client never forgets one and raises at the first bad id.

Sources: Kafka ``TransactionCoordinator.scala``; KIP-98 (EndTxn, InitProducerId), KIP-664 (Describe/ListTransactions).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.net.compat import KafkaNetClient
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    Send = Callable[[Any, int | None], Any]

logger = logging.getLogger(__name__)

#: Transactions V1, as librdkafka speaks them (its own EndTxn is <= v3): one family for a transaction's whole life, so
#: that a repeated commit is answered NONE. v5 (KIP-890) would answer INVALID_TXN_STATE to one that v3 has committed.
_END_TXN_VERSION: Final = 3
_INIT_PRODUCER_ID_VERSION: Final = 4
_TRANSACTION_COORDINATOR: Final = 1
_NOT_HERE: Final = frozenset(
    {
        kafka_errors.NotCoordinatorError.errno,
        kafka_errors.CoordinatorNotAvailableError.errno,
        kafka_errors.CoordinatorLoadInProgressError.errno,
    }
)
#: No answer was had: nothing is known of what the broker did.
NO_ANSWER: Final = "NO_ANSWER"
NONE: Final = "NONE"
_BOOTSTRAP_TIMEOUT_MS: Final = 30_000
CONCURRENT: Final = "ConcurrentTransactionsError"
#: Somebody has initialised the id since.
FENCED: Final = frozenset({"ProducerFencedError", "InvalidProducerEpochError"})
NOT_FOUND: Final = "TransactionalIdNotFoundError"
NOT_AUTHORIZED: Final = "TransactionalIdAuthorizationFailedError"


@dataclass(frozen=True)
class Description:
    """What a coordinator says of a transactional id.

    Attributes:
        error: ``NONE``, ``NO_ANSWER`` or kafka-python's name of the error; the rest is meaningless unless NONE.
        partitions: ``topic:partition`` of the open transaction.
    """

    error: str
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    partitions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ProducerIdentity:
    """What a commit is addressed to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def whoever(transactional_id: str) -> ProducerIdentity:
    """Whoever has the id now. An id that does not exist yet begins to."""
    return ProducerIdentity(transactional_id, -1, -1)


@dataclass(frozen=True)
class Listing:
    """Open transactions; ``complete`` is False when a broker did not answer, so that some may be missing."""

    transactional_ids: tuple[str, ...]
    complete: bool


def _connected(config: Mapping[str, Any]) -> KafkaAdminClient:
    opened: list[KafkaNetClient] = []

    def open_client(**settings: Any) -> KafkaNetClient:
        opened.append(KafkaNetClient(**settings))
        return opened[-1]

    try:
        return KafkaAdminClient(**config, max_in_flight_requests_per_connection=10_000, kafka_client=open_client)
    except (kafka_errors.KafkaError, ValueError, OSError):
        for client in opened:  # its constructor leaves thread and sockets behind when it fails
            client.close()
            client._manager._net.stop()  # noqa: SLF001 - see the module's docstring
        raise


class TransactionClient:
    """A connection to a cluster's transaction coordinators. Thread-safe: requests run on the admin client's thread."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        # kafka-python begins with one of them by chance, and waits for a silent one until the whole time is over
        # (``KafkaConnectionManager._do_bootstrap``): so it gets its share only, and chance is tried again.
        servers = len(config["bootstrap_servers"])
        tries = 2 * servers if servers > 1 else 1
        share_ms = config.get("bootstrap_timeout_ms", _BOOTSTRAP_TIMEOUT_MS) / tries
        for left in reversed(range(tries)):
            try:
                self._admin = _connected({**config, "bootstrap_timeout_ms": share_ms})
                break
            except (kafka_errors.KafkaError, ValueError, OSError) as error:
                if not left or not isinstance(error, kafka_errors.KafkaTimeoutError):
                    raise _unreachable(config, error) from error
        self._manager = self._admin._manager  # noqa: SLF001 - the same
        self._coordinators: dict[str, int] = {}

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return str(self._manager.cluster.cluster_id)

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, Description]:
        """DescribeTransactions, one request a coordinator, each id judged by itself."""
        answers = self._routed(
            transactional_ids,
            lambda ids: DescribeTransactionsRequest(transactional_ids=list(ids)),
            lambda response: {
                state.transactional_id: (state.error_code, _description(state)) for state in response.transaction_states
            },
        )
        return {tid: found if isinstance(found, Description) else Description(found) for tid, found in answers.items()}

    def end(self, identities: Sequence[ProducerIdentity], *, commit: bool = True) -> dict[str, str]:
        """EndTxn for each, all in flight together. Returns the error's name by transactional id, NONE for success.

        Asked once: CONCURRENT_TRANSACTIONS and lost answers are the caller's to ask again.
        """
        by_id = {identity.transactional_id: identity for identity in identities}

        def request(ids: Collection[str]) -> Any:
            (identity,) = (by_id[tid] for tid in ids)
            return EndTxnRequest(
                transactional_id=identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                committed=commit,
                max_version=_END_TXN_VERSION,
            )

        answers = self._routed(list(by_id), request, _single_answer, one_by_one=True)
        return {tid: str(found) for tid, found in answers.items()}

    def fence(self, identities: Sequence[ProducerIdentity], *, timeout_ms: int = 60_000) -> dict[str, str]:
        """InitProducerId for each: aborts what is open and bumps the epoch, so that its writer is fenced wherever it is.

        An id that was initialised by somebody else since is left alone, and answered with one of :data:`FENCED` (KIP-360), but
        only while it has no open transaction: an open one is aborted whatever the epoch (``prepareInitProducerIdTransit``).
        :func:`whoever` fences it all the same. Asked once, see :meth:`end`.
        """
        by_id = {identity.transactional_id: identity for identity in identities}

        def request(ids: Collection[str]) -> Any:
            (identity,) = (by_id[tid] for tid in ids)
            return InitProducerIdRequest(
                transactional_id=identity.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                max_version=_INIT_PRODUCER_ID_VERSION,
            )

        answers = self._routed(list(by_id), request, _single_answer, one_by_one=True)
        return {tid: str(found) for tid, found in answers.items()}

    def list_open(self, prefix: str) -> Listing:
        """Transactional ids with an open transaction whose name starts with ``prefix``, over all brokers.

        Ids without the Describe right are left out by the broker without a word: check the right beforehand.
        """
        nodes = [broker.node_id for broker in self._manager.cluster.brokers()]

        async def ask() -> list[Any]:
            futures = [self._sent(ListTransactionsRequest(state_filters=["Ongoing"]), node) for node in nodes]
            return [await _outcome(future) for future in futures]

        found: set[str] = set()
        complete = bool(nodes)
        try:
            responses = self._manager.run(ask)
        except kafka_errors.KafkaError as error:
            logger.warning("open transactions could not be listed: %s", error)
            return Listing((), complete=False)
        for response in responses:
            if isinstance(response, Exception) or response.error_code:
                complete = False
                continue
            found.update(
                row.transactional_id for row in response.transaction_states if row.transactional_id.startswith(prefix)
            )
        return Listing(tuple(sorted(found)), complete)

    def _routed(
        self,
        transactional_ids: Sequence[str],
        request: Callable[[Collection[str]], Any],
        read: Callable[[Any], Mapping[str, tuple[int, Any]]],
        *,
        one_by_one: bool = False,
    ) -> dict[str, Any]:
        """Send to each id's coordinator; an id whose coordinator moved is looked up anew and asked once more."""
        answers: dict[str, Any] = dict.fromkeys(transactional_ids, NO_ANSWER)

        async def ask() -> None:
            waiting = list(transactional_ids)
            for _ in range(2):
                nodes, refused = await self._find(waiting)
                answers.update(refused)
                groups: list[tuple[int, list[str]]] = []
                for node in sorted(set(nodes.values())):
                    ids = [tid for tid, at in nodes.items() if at == node]
                    groups += [(node, [tid]) for tid in ids] if one_by_one else [(node, ids)]
                futures = [(ids, self._sent(request(ids), node)) for node, ids in groups]
                again = []
                for ids, future in futures:
                    response = await _outcome(future)
                    rows = {} if isinstance(response, Exception) else read(response)
                    for tid in ids:
                        # A response to a request for one id does not repeat the id.
                        code, found = rows.get(tid) or rows.get("") or (None, NO_ANSWER)
                        if code is None or code in _NOT_HERE:
                            # NOT_COORDINATOR can follow a successful append: it is no answer.
                            self._coordinators.pop(tid, None)
                            again.append(tid)
                            answers[tid] = NO_ANSWER
                        else:
                            answers[tid] = found if code == 0 else kafka_errors.for_code(code).__name__
                waiting = again
                if not waiting:
                    return

        try:
            self._manager.run(ask)
        except kafka_errors.KafkaError as error:
            logger.warning("transaction coordinators could not be asked: %s", error)
        return answers

    def _sent(self, request: Any, *node: int) -> Any:
        """The future of a request. A node that the metadata no longer has is refused at once: no answer, as any other."""
        try:
            return self._manager.send(request, *node)
        except kafka_errors.KafkaError as error:
            return error

    async def _find(self, transactional_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, Any]]:
        """The coordinators that are known, and the ids whose look-up was refused, with the error's name."""
        refused: dict[str, Any] = {}
        unknown = [tid for tid in transactional_ids if tid not in self._coordinators]
        if unknown:
            request = FindCoordinatorRequest(key_type=_TRANSACTION_COORDINATOR, coordinator_keys=unknown, min_version=4)
            response = await _outcome(self._sent(request))
            for row in [] if isinstance(response, Exception) else response.coordinators:
                if row.error_code == 0:
                    self._coordinators[row.key] = row.node_id
                elif row.error_code not in _NOT_HERE:
                    refused[row.key] = kafka_errors.for_code(row.error_code).__name__
        return {tid: self._coordinators[tid] for tid in transactional_ids if tid in self._coordinators}, refused


def _unreachable(config: Mapping[str, Any], error: Exception) -> TwoPhaseCommitError:
    servers = ", ".join(config["bootstrap_servers"])
    if isinstance(error, kafka_errors.KafkaTimeoutError):
        return RetriableError(
            f"no Kafka broker answers at {servers} ({error}): check bootstrap_servers and the network; on a secured listener "
            "kafka.security.protocol, kafka.sasl.* and kafka.ssl.*"
        )
    return ConfigurationError(f"cannot connect to Kafka at {servers}: {error}")


async def _outcome(future: Any) -> Any:
    if isinstance(future, Exception):
        return future
    try:
        return await future
    except (kafka_errors.KafkaError, OSError) as error:
        return error


def _single_answer(response: Any) -> dict[str, tuple[int, str]]:
    return {"": (response.error_code, NONE)}


def _description(state: Any) -> Description:
    return Description(
        NONE,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        partitions=frozenset(f"{row.topic}:{partition}" for row in state.topics for partition in row.partitions),
    )
