"""Where things are in an HBase, and connections to them."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sinks.hbase_connection import Master, RegionServer
from sinks.hbase_driver import TableNotFoundException
from sinks.hbase_errors import FAILURES, AbsentTableError
from sinks.hbase_messages import name_parts
from sinks.hbase_zookeeper import locate_master, locate_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sinks.hbase_messages import Message

Address = tuple[str, int]
T = TypeVar("T")


class Region(NamedTuple):
    """A region and who serves it."""

    start: bytes
    end: bytes
    name: bytes
    server: Address


class Cluster:
    """Connections and locations of one process. Used by one thread.

    Args:
        zookeeper: ``host:port,…``, the quorum in which HBase says where its master and ``hbase:meta`` are.
        user: who this is.
        timeout_s: how long one answer may take, in seconds.
    """

    def __init__(self, zookeeper: str, *, user: str, timeout_s: float) -> None:
        self._zookeeper = zookeeper
        self._user = user
        self._timeout_s = timeout_s
        self._servers: dict[Address, RegionServer] = {}
        self._meta: Address | None = None
        self._master: Master | None = None
        self._regions: dict[str, list[Region]] = {}

    def call(self, server: Address, method: str, request: Message) -> Message:
        """Call a region server, over a connection that is kept.

        Raises:
            Exception: one of ``hbase_errors.FAILURES``.
        """
        return self._server(server).send_request(request, method)

    def region_of(self, table: str, row: bytes) -> Region:
        """The region that a row is in.

        Raises:
            AbsentTableError: there is no such table.
            Exception: another of ``hbase_errors.FAILURES``.
        """
        known = self._regions.setdefault(table, [])
        at = bisect_right(known, row, key=lambda one: one.start) - 1
        if at >= 0 and (not known[at].end or row < known[at].end):
            return known[at]
        found = self._look_up(table, row)
        insort(known, found)
        return found

    def forget(self, table: str) -> None:
        """Ask anew where a table's rows are: something known was wrong, or nobody answered there."""
        self._regions.pop(table, None)

    def describe(self, tables: Sequence[str]) -> dict[str, Message]:
        """The schemas of tables, by name; what does not exist is not there."""

        def ask(master: Master) -> dict[str, Message]:
            answers = {name: master.describe_table(*name_parts(name)).table_schema for name in tables}
            return {name: schemas[0] for name, schemas in answers.items() if schemas}

        return self.ask_master(ask)

    def ask_master(self, step: Callable[[Master], T]) -> T:
        """Call the active master."""
        if self._master is None:
            self._master = Master(
                *locate_master(self._zookeeper, self._timeout_s), user=self._user, timeout_s=self._timeout_s
            )
        try:
            return step(self._master)
        except FAILURES:  # another one may be active by now
            self._master.close()
            self._master = None
            raise

    def close(self) -> None:
        """Close the connections."""
        for connection in (*self._servers.values(), *filter(None, [self._master])):
            connection.close()

    def _server(self, address: Address) -> RegionServer:
        if address not in self._servers:
            self._servers[address] = RegionServer(*address, user=self._user, timeout_s=self._timeout_s)
        return self._servers[address]

    def _look_up(self, table: str, row: bytes) -> Region:
        if self._meta is None:
            self._meta = locate_meta(self._zookeeper, self._timeout_s)
        try:
            # It looks for the last region that begins before a row, which misses one that begins with this row, and for an
            # empty row for the first one, which may be split already. So the next row is given; what is found may be on
            # its way, which is looked at here.
            found: Any = self._server(self._meta).locate_region(*name_parts(table), row + b"\0")
        except TableNotFoundException:
            raise AbsentTableError(f"there is no table {table!r}") from None
        except FAILURES:
            self._meta = None
            raise
        info = found.region_info
        if not found.host or info.split or info.offline or not found.key_in_region(row):
            raise ConnectionError(f"table {table!r}: the region of row {row!r} is not in service now")
        return Region(info.start_key, info.end_key, found.get_region_name(), (found.host.decode(), int(found.port)))
