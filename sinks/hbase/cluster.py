"""Where things are in an HBase, and connections to them."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sinks.hbase.connection import Master, RegionServer
from sinks.hbase.driver import TableNotFoundException
from sinks.hbase.errors import FAILURES, AbsentTableError
from sinks.hbase.messages import name_parts
from sinks.hbase.zookeeper import ZNODE, locate_master, locate_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sinks.hbase.messages import Message

Address = tuple[str, int]
T = TypeVar("T")


class Region(NamedTuple):
    """A region and who serves it."""

    start: bytes
    end: bytes
    name: bytes
    server: Address


class Cluster:
    """Connections and locations of one process. Threads may share it: each call has a connection to itself.

    Args:
        zookeeper: ``host:port,…``, the quorum in which HBase says where its master and ``hbase:meta`` are.
        znode: where there.
        user: who this is.
        timeout_s: how long one answer may take, in seconds.
    """

    def __init__(self, zookeeper: str, *, znode: str = ZNODE, user: str, timeout_s: float) -> None:
        self._zookeeper = zookeeper
        self._znode = znode
        self._user = user
        self._timeout_s = timeout_s
        self._idle: defaultdict[Address, list[RegionServer]] = defaultdict(list)
        self._meta: Address | None = None
        self._master: Master | None = None
        self._regions: dict[str, list[Region]] = {}
        self._lock = threading.Lock()  # never held while somebody is asked

    def call(self, server: Address, method: str, request: Message) -> Message:
        """Call a region server, over a connection that is kept.

        Raises:
            Exception: one of ``hbase_errors.FAILURES``.
        """
        return self._with_connection(server, lambda connection: connection.send_request(request, method))

    def region_of(self, table: str, row: bytes) -> Region:
        """The region that a row is in.

        Raises:
            AbsentTableError: there is no such table.
            Exception: another of ``hbase_errors.FAILURES``.
        """
        with self._lock:
            known = self._regions.setdefault(table, [])
            at = bisect_right(known, row, key=lambda one: one.start) - 1
            if at >= 0 and (not known[at].end or row < known[at].end):
                return known[at]
        found = self._look_up(table, row)
        with self._lock:
            if found not in known:
                insort(known, found)  # which may be forgotten by now, and is then remembered by nobody
        return found

    def forget(self, table: str) -> None:
        """Ask anew where a table's rows are: something known was wrong, or nobody answered there."""
        with self._lock:
            self._regions.pop(table, None)

    def describe(self, tables: Sequence[str]) -> dict[str, Message]:
        """The schemas of tables, by name; what does not exist is not there."""

        def ask(master: Master) -> dict[str, Message]:
            answers = {name: master.describe_table(*name_parts(name)).table_schema for name in tables}
            return {name: schemas[0] for name, schemas in answers.items() if schemas}

        return self.ask_master(ask)

    def ask_master(self, step: Callable[[Master], T]) -> T:
        """Call the active master. Not by several threads at once."""
        if self._master is None:
            address = locate_master(self._zookeeper, self._timeout_s, self._znode)
            self._master = Master(*address, user=self._user, timeout_s=self._timeout_s)
        try:
            return step(self._master)
        except FAILURES:  # another one may be active by now
            self._master.close()
            self._master = None
            raise

    def close(self) -> None:
        """Close the connections."""
        idle = [connection for connections in self._idle.values() for connection in connections]
        for connection in (*idle, *filter(None, [self._master])):
            connection.close()

    def _with_connection(self, address: Address, step: Callable[[RegionServer], T]) -> T:
        with self._lock:
            idle = self._idle[address]
            connection = idle.pop() if idle else RegionServer(*address, user=self._user, timeout_s=self._timeout_s)
        try:
            return step(connection)
        finally:
            idle.append(connection)  # after an error, too: it is closed then, and connects anew

    def _look_up(self, table: str, row: bytes) -> Region:
        meta = self._meta = self._meta or locate_meta(self._zookeeper, self._timeout_s, self._znode)
        try:
            # It looks for the last region that begins before a row, which misses one that begins with this row, and for an
            # empty row for the first one, which may be split already. So the next row is given; what is found may be on
            # its way, which is looked at here.
            found: Any = self._with_connection(
                meta, lambda connection: connection.locate_region(*name_parts(table), row + b"\0")
            )
        except TableNotFoundException:
            raise AbsentTableError(f"there is no table {table!r}") from None
        except FAILURES:
            self._meta = None
            raise
        info = found.region_info
        if not found.host or info.split or info.offline or not found.key_in_region(row):
            raise ConnectionError(f"table {table!r}: the region of row {row!r} is not in service now")
        return Region(info.start_key, info.end_key, found.get_region_name(), (found.host.decode(), int(found.port)))
