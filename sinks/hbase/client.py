"""A client for HBase: executes operations on rows, wherever these are, and retries them until answered.

Many rows go in one call to a server (``Multi``), each conditional one as an atomic step of its own.
:meth:`HBaseClient.execute` takes operations that may be repeated: after a lost answer it retries them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenacity import wait_exponential

from sinks.hbase.errors import FAILURES, RemoteError, is_transient
from sinks.hbase.messages import Message, client_pb, region
from sinks.retry import execute_all, retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sinks.hbase.cluster import Address, Cluster, Region
    from sinks.hbase.row_ops import Op

_BACKOFF: Final = wait_exponential(multiplier=0.02, max=0.5)
#: The most of one call: enough that the round trip does not matter.
_CALL_OPS: Final = 1_000
_CALL_BYTES: Final = 4 * 1024 * 1024
_SCAN_ROWS: Final = 1_000

T = TypeVar("T")


class HBaseClient:
    """Connections of one process. Threads may share it.

    Args:
        cluster: finds regions and servers.
        timeout_s: how long a call may go without any answer before it gives up, in seconds.
    """

    def __init__(self, cluster: Cluster, *, timeout_s: float) -> None:
        self.cluster = cluster
        self._timeout_s = timeout_s

    def execute(self, ops: Sequence[Op]) -> list[Any]:
        """Execute operations, in order within a row; retry transient errors until no operation is answered in time.

        Returns:
            for each look its ``Result``, for each mutation whether its condition held; an error is an answer.
        """
        answers: list[Any] = [TimeoutError("not sent")] * len(ops)

        def recover(left: Sequence[int]) -> None:
            for table in {ops[at].table for at in left}:
                self.cluster.forget(table)

        return execute_all(
            answers,
            sizes=lambda at: (1, ops[at].size_bytes),
            limits=(_CALL_OPS, _CALL_BYTES),
            execute=lambda window: self._execute(ops, window, answers),
            retry_if=is_transient,
            recover=recover,
            timeout_s=self._timeout_s,
            backoff=_BACKOFF,
        )

    def execute_one(self, op: Op) -> Any:
        """Execute one operation, as :meth:`execute` does.

        Raises:
            Exception: one of ``sinks.hbase.errors.FAILURES``.
        """
        [answer] = self.execute([op])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def retry(self, step: Callable[[], T]) -> T:
        """Take a step that may be repeated; retry it while its error is transient, until the time is out.

        Raises:
            Exception: one of ``sinks.hbase.errors.FAILURES``, the last one.
        """
        return retrying(is_transient, timeout_s=self._timeout_s, backoff=_BACKOFF)(step)

    def scan(self, table: str, prefix: bytes, family: bytes) -> Iterator[Message]:
        """The ``Result`` of every row that begins with a prefix and has cells in a family.

        Raises:
            Exception: one of ``sinks.hbase.errors.FAILURES``.
        """
        start, stop = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
        while start < stop:
            found, next_start = self.retry(lambda at=start: self._scan_once(table, at, stop, family))  # type: ignore[misc]
            yield from found
            if not next_start:
                return
            start = next_start

    def close(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _scan_once(self, table: str, start: bytes, stop: bytes, family: bytes) -> tuple[list[Message], bytes]:
        """Some rows, and the row to continue from, which is empty at the end."""
        place = self.cluster.region_of(table, start)
        scan = client_pb.Scan(start_row=start, stop_row=stop, include_start_row=True, max_versions=1)
        scan.column.add(family=family)
        request = client_pb.ScanRequest(
            region=region(place.name), scan=scan, number_of_rows=_SCAN_ROWS, close_scanner=True
        )
        try:
            answer = self.cluster.call(place.server, "Scan", request)
        except FAILURES:
            self.cluster.forget(table)
            raise
        found = list(answer.results)
        # A call may end early, by size: only an empty answer has reached the region's end.
        return found, found[-1].cell[0].row + b"\0" if found else place.end

    def _execute(self, ops: Sequence[Op], places: Sequence[int], answers: list[Any]) -> None:
        by_server: dict[Address, list[tuple[int, Region]]] = {}
        failure: Exception | None = None
        deadline = time.monotonic() + self._timeout_s
        for place in places:
            if failure is not None and time.monotonic() > deadline:
                answers[place] = failure  # the same silence, which no further row needs to wait for
                continue
            try:
                where = self.cluster.region_of(ops[place].table, ops[place].row)
            except FAILURES as error:
                answers[place] = failure = error
                continue
            by_server.setdefault(where.server, []).append((place, where))
        for server, mine in by_server.items():
            request, groups = _request(ops, mine)
            try:
                answer = self.cluster.call(server, "Multi", request)
            except FAILURES as error:
                for place, _ in mine:
                    answers[place] = error
                continue
            for group, result in zip(groups, answer.regionActionResult, strict=True):
                _read(ops, group, result, answers)


def _request(ops: Sequence[Op], mine: Sequence[tuple[int, Region]]) -> tuple[Message, list[list[int]]]:
    """One call for operations on one server, and the positions of the operations in each of its parts."""
    request = client_pb.MultiRequest()
    groups: list[list[int]] = []
    plain: dict[bytes, tuple[Message, list[int]]] = {}
    for place, where in mine:
        op = ops[place]
        if op.condition is None and len(op.mutations) <= 1:
            if where.name not in plain:
                groups.append([])
                plain[where.name] = request.regionAction.add(region=region(where.name), atomic=False), groups[-1]
            part, group = plain[where.name]
        else:
            part, group = request.regionAction.add(region=region(where.name), atomic=True), []
            groups.append(group)
            if op.condition is not None:
                part.condition.CopyFrom(op.condition)
        if op.look is not None:
            part.action.add(index=len(group)).get.CopyFrom(op.look)
        for number, mutation in enumerate(op.mutations):
            action = part.action.add()
            action.index = len(group) + number
            action.mutation.CopyFrom(mutation)
        group.append(place)
    return request, groups


def _read(ops: Sequence[Op], group: Sequence[int], result: Message, answers: list[Any]) -> None:
    """Fill in the answers of one part of a response."""
    if result.HasField("exception"):
        for place in group:
            answers[place] = _error(result.exception)
        return
    first = ops[group[0]]
    if first.condition is not None or len(first.mutations) > 1:
        answers[group[0]] = bool(result.processed) or first.condition is None
        return
    for one in result.resultOrException:
        place = group[one.index]
        if one.HasField("exception"):
            answers[place] = _error(one.exception)
        else:
            answers[place] = one.result if ops[place].look is not None else True


def _error(exception: Message) -> Exception:
    return RemoteError(exception.name, exception.value.decode(errors="replace"))
