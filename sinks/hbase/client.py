"""Execute operations on HBase rows, and find the servers that hold those rows.

One call to a server (``Multi``) carries many rows. Each conditional operation is a separate atomic step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenacity import wait_exponential

from twopc.retry import retrying
from twopc.sinks.hbase.errors import FAILURES, REMEDIES, RemoteError, ignored_condition, is_transient
from twopc.sinks.hbase.messages import Message, client_pb, region
from twopc.sinks.hbase.row_ops import AS_CONFIGURED, DURABLE, Op
from twopc.sinks.staged.client import StoreClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from twopc.sinks.hbase.cluster import Address, Cluster, Region

_SCAN_ROWS: Final = 1_000

T = TypeVar("T")


class HBaseClient(StoreClient[Op]):
    """See :class:`StoreClient`. Each row changes atomically. Threads may share a client.

    The response to a read is its ``Result``; the response to a mutation says whether the condition held.

    Attributes:
        synced: the tables whose own setting is known to be at least as durable as ``DURABLE``. It applies to all mutations,
            because an explicit ``DURABLE`` would weaken a table or a cluster that forces every write to the disks.
    """

    system = "HBase"
    oldest = "2.4"
    failures = FAILURES
    remedies = REMEDIES
    #: The maximum numbers of rows and bytes in one call, large enough that the round trip does not matter.
    limits = (1_000, 4 * 1024 * 1024)
    backoff = wait_exponential(multiplier=0.02, max=0.5)
    is_transient = staticmethod(is_transient)

    def __init__(self, cluster: Cluster, *, timeout_s: float, synced: Iterable[str] = ()) -> None:
        super().__init__(timeout_s=timeout_s)
        self.cluster = cluster
        self.synced = set(synced)

    def retry(self, step: Callable[[], T]) -> T:
        """Run a repeatable step, and retry it after transient errors until the timeout."""
        return retrying(is_transient, timeout_s=self._timeout_s, backoff=self.backoff)(step)

    def scan(self, table: str, prefix: bytes, family: bytes) -> Iterator[Message]:
        """Yield the ``Result`` of every row whose key begins with a prefix and that has cells in a family."""
        start, stop = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
        while start < stop:
            found, next_start = self.retry(lambda at=start: self._scan_once(table, at, stop, family))  # type: ignore[misc]
            yield from found
            if not next_start:
                return
            start = next_start

    def send_whole(self, table: str, chunk: Message) -> bool:
        """If all of a chunk's rows are in one region, send their mutations in one call, without an operation for each row.

        The mutations must be for different rows, must be repeatable, and must not have a condition.

        Returns:
            whether all mutations were applied. If not, some of them may have been applied, so execute the mutations one
            by one.
        """
        most_rows, most_bytes = self.limits
        if not 0 < len(chunk.action) <= most_rows or chunk.ByteSize() > most_bytes:
            return False
        rows = [action.mutation.row for action in chunk.action]
        for index, action in enumerate(chunk.action):
            action.index = index
            action.mutation.durability = self._durability(table)
        try:
            where = self.cluster.region_of(table, min(rows))
            if where.end and max(rows) >= where.end:
                return False
            chunk.region.value = where.name
            answer = self.cluster.call(where.server, "Multi", client_pb.MultiRequest(regionAction=[chunk]))
        except FAILURES:
            return False
        [result] = answer.regionActionResult
        done = {one.index for one in result.resultOrException if not one.HasField("exception")}
        return not result.HasField("exception") and len(done) == len(rows)

    def close(self) -> None:
        """See :class:`StoreClient`."""
        self.cluster.close()

    def _sizes(self, call: Op) -> tuple[int, int]:
        return (1, call.size_bytes)

    def _recover(self, calls: Sequence[Op], answers: Sequence[Any]) -> None:
        del answers
        for table in {op.table for op in calls}:
            self.cluster.forget(table)

    def _scan_once(self, table: str, start: bytes, stop: bytes, family: bytes) -> tuple[list[Message], bytes]:
        """Read some rows. Also return the row from which to continue, which is empty at the end."""
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
        # A size limit may end a call early. Only an empty response marks the end of the region.
        return found, found[-1].cell[0].row + b"\0" if found else place.end

    def _durability(self, table: str) -> Any:
        return AS_CONFIGURED if table in self.synced else DURABLE

    def _find(self, call: Op, last: Any) -> tuple[Address, Region]:
        del last
        where = self.cluster.region_of(call.table, call.row)
        return where.server, where

    def _send(
        self, server: Address, calls: Sequence[Op], mine: Sequence[tuple[int, Region]], answers: list[Any]
    ) -> None:
        request, groups = _request(calls, mine, self._durability)
        answer = self.cluster.call(server, "Multi", request)
        for group, result in zip(groups, answer.regionActionResult, strict=True):
            _read(calls, group, result, answers)


def _request(
    ops: Sequence[Op], mine: Sequence[tuple[int, Region]], durability: Callable[[str], Any]
) -> tuple[Message, list[list[int]]]:
    """Build one call for the operations on one server. ``durability`` returns the durability of a table's mutations.

    Also return the indexes of the operations in each part of the call.
    """
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
            action.mutation.durability = durability(op.table)
        group.append(place)
    return request, groups


def _read(ops: Sequence[Op], group: Sequence[int], result: Message, answers: list[Any]) -> None:
    if result.HasField("exception"):
        for place in group:
            answers[place] = _error(result.exception)
        return
    first = ops[group[0]]
    if first.condition is not None and not result.HasField("processed"):
        answers[group[0]] = ignored_condition(first.row)
        return
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
