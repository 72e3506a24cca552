"""One way to an HBase: operations on rows, wherever these are, until each is answered.

Many rows go in one call a server (``Multi``), each conditional one as an atomic step of its own. Nothing but what may be
repeated is given to :meth:`HBaseLink.ask`: after a lost answer it asks again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sinks.hbase.errors import FAILURES, RemoteError, is_transient
from sinks.hbase.messages import Message, client, region
from sinks.retry import ask_until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sinks.hbase.cluster import Address, Cluster, Region
    from sinks.hbase.row_ops import Op

_BACKOFF_S: Final = 0.02
_BACKOFF_MAX_S: Final = 0.5
#: How much goes into one call: enough that the way there and back does not count.
_CALL_OPS: Final = 1_000
_CALL_BYTES: Final = 4 * 1024 * 1024
_SCAN_ROWS: Final = 1_000

T = TypeVar("T")


class HBaseLink:
    """The way of one process. Threads may share it.

    Args:
        cluster: where things are.
        timeout_s: how long nothing may go on before what is left counts as not answered, in seconds.
    """

    def __init__(self, cluster: Cluster, *, timeout_s: float) -> None:
        self.cluster = cluster
        self._timeout_s = timeout_s

    def ask(self, ops: Sequence[Op]) -> list[Any]:
        """Do the operations, in order within a row, and again those whose error is transient, until the time is out.

        Returns:
            for each look its ``Result``, for each mutation whether its condition held; an error is an answer.
        """
        answers: list[Any] = [TimeoutError("not asked")] * len(ops)

        def recover(left: Sequence[int]) -> bool:
            for table in {ops[at].table for at in left}:
                self.cluster.forget(table)
            return True

        return ask_until_answered(
            answers,
            windows=lambda pending: _windows(pending, ops),
            make=lambda window: self._make(ops, window, answers),
            again=is_transient,
            recover=recover,
            timeout_s=self._timeout_s,
            pauses_s=(_BACKOFF_S, _BACKOFF_MAX_S),
        )

    def insist(self, step: Callable[[], T]) -> T:
        """Take a step that may be repeated, again and again while its error is transient and the time is not out.

        Raises:
            Exception: one of ``hbase_errors.FAILURES``, the last one.
        """
        deadline = time.monotonic() + self._timeout_s
        pause_s = _BACKOFF_S
        while True:
            try:
                return step()
            except FAILURES as error:
                if not is_transient(error) or time.monotonic() > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _BACKOFF_MAX_S)

    def scan(self, table: str, prefix: bytes, family: bytes) -> Iterator[Message]:
        """The ``Result`` of every row that begins with a prefix and has cells in a family.

        Raises:
            Exception: one of ``hbase_errors.FAILURES``.
        """
        start, stop = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
        while start < stop:
            found, next_start = self.insist(lambda at=start: self._scan_once(table, at, stop, family))  # type: ignore[misc]
            yield from found
            if not next_start:
                return
            start = next_start

    def close(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _scan_once(self, table: str, start: bytes, stop: bytes, family: bytes) -> tuple[list[Message], bytes]:
        """Some rows, and where to go on."""
        place = self.cluster.region_of(table, start)
        scan = client.Scan(start_row=start, stop_row=stop, include_start_row=True, max_versions=1)
        scan.column.add(family=family)
        request = client.ScanRequest(
            region=region(place.name), scan=scan, number_of_rows=_SCAN_ROWS, close_scanner=True
        )
        try:
            answer = self.cluster.call(place.server, "Scan", request)
        except FAILURES:
            self.cluster.forget(table)
            raise
        found = list(answer.results)
        # A call may end early, by size: only one that finds nothing has come to the region's end.
        return found, found[-1].cell[0].row + b"\0" if found else place.end

    def _make(self, ops: Sequence[Op], places: Sequence[int], answers: list[Any]) -> None:
        by_server: dict[Address, list[tuple[int, Region]]] = {}
        failure: Exception | None = None
        deadline = time.monotonic() + self._timeout_s
        for place in places:
            if failure is not None and time.monotonic() > deadline:
                answers[place] = failure  # nobody answers: not to be waited for again by each row
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
    """One call for operations on one server, and which of them each of its parts holds."""
    request = client.MultiRequest()
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
    """Note the answers in one part of a response."""
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


def _windows(places: Sequence[int], ops: Sequence[Op]) -> Iterator[list[int]]:
    window: list[int] = []
    size_bytes = 0
    for place in places:
        more_bytes = ops[place].size_bytes
        if window and (len(window) >= _CALL_OPS or size_bytes + more_bytes > _CALL_BYTES):
            yield window
            window, size_bytes = [], 0
        window.append(place)
        size_bytes += more_bytes
    if window:
        yield window
