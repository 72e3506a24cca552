"""Routing: each request about a transaction goes to the broker that coordinates its transactional id.

kafka-python's admin client has its own routing, but it never forgets a coordinator and raises at the first bad id.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.metadata import FindCoordinatorRequest

from sinks.kafka.reports import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sinks.kafka.broker_connection import BrokerConnection

    Build = Callable[[Sequence[str]], Any]
    #: The error code and the result by transactional id; a response about one id has it under "".
    Read = Callable[[Any], Mapping[str, tuple[int, Any]]]

logger = logging.getLogger(__name__)

_TRANSACTION_COORDINATOR: Final = 1
#: Error codes of a broker that does not coordinate the id. NOT_COORDINATOR can follow a successful append, so none of them
#: reports an outcome.
_MOVED: Final = frozenset(
    {
        kafka_errors.NotCoordinatorError.errno,
        kafka_errors.CoordinatorNotAvailableError.errno,
        kafka_errors.CoordinatorLoadInProgressError.errno,
    }
)


class Coordinators:
    """The known coordinators of transactional ids."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._nodes: dict[str, int] = {}

    def request(
        self, transactional_ids: Sequence[str], build: Build, read: Read, *, one_by_one: bool = False
    ) -> dict[str, Any]:
        """Send a request for every id to its coordinator, all in flight together.

        Args:
            transactional_ids: the ids.
            build: the request for some of them.
            read: what its response reports.
            one_by_one: whether a request is about one id only.

        Returns:
            by id, what was read, or the error's name. NO_ANSWER where no coordinator responded.
        """
        reports: dict[str, Any] = dict.fromkeys(transactional_ids, NO_ANSWER)

        async def route() -> None:
            waiting = list(transactional_ids)
            for _ in range(2):  # the second time for ids whose coordinator has moved; further retries are the caller's
                reports.update(await self._look_up(waiting))
                groups = self._groups(waiting, one_by_one=one_by_one)
                sent = [(ids, self._connection.send(build(ids), node)) for node, ids in groups]
                moved = []
                for ids, response in sent:
                    outcome = await response
                    rows = {} if isinstance(outcome, Exception) else read(outcome)
                    for tid in ids:
                        code, found = rows.get(tid) or rows.get("") or (None, NO_ANSWER)
                        if code is None or code in _MOVED:
                            self._nodes.pop(tid, None)
                            moved.append(tid)
                            reports[tid] = NO_ANSWER
                        else:
                            reports[tid] = found if code == 0 else _error_name(code)
                waiting = moved
                if not waiting:
                    return

        try:
            self._connection.run(route)
        except kafka_errors.KafkaError as error:
            logger.warning("the transaction coordinators could not be reached: %s", error)
        return reports

    async def _look_up(self, transactional_ids: Sequence[str]) -> dict[str, str]:
        """Find the coordinators that are not known yet. Returns the error's name for each id that was refused."""
        refused: dict[str, str] = {}
        unknown = [tid for tid in transactional_ids if tid not in self._nodes]
        if unknown:
            outcome = await self._connection.send(
                FindCoordinatorRequest(key_type=_TRANSACTION_COORDINATOR, coordinator_keys=unknown, min_version=4)
            )
            for row in [] if isinstance(outcome, Exception) else outcome.coordinators:
                if row.error_code == 0:
                    self._nodes[row.key] = row.node_id
                elif row.error_code not in _MOVED:
                    refused[row.key] = _error_name(row.error_code)
        return refused

    def _groups(self, transactional_ids: Sequence[str], *, one_by_one: bool) -> Iterator[tuple[int, list[str]]]:
        """The ids whose coordinator is known, by node, as they go into requests."""
        known = {tid: self._nodes[tid] for tid in transactional_ids if tid in self._nodes}
        for node in sorted(set(known.values())):
            ids = [tid for tid, at in known.items() if at == node]
            yield from ((node, [tid]) for tid in ids) if one_by_one else ((node, ids),)


def _error_name(code: int) -> str:
    return str(kafka_errors.for_code(code).__name__)
