"""Find the regions and servers of an HBase cluster, and connect to them.

This module does not use ``hbasedriver.zk`` to read ZooKeeper. If the znode is missing, for example while HBase is
starting, ``hbasedriver.zk`` leaves a client running. That client opens new sessions until the process exits. Also,
``hbasedriver.zk`` contacts only one of several hosts, and waits for 10 s.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from twopc.sinks.hbase.connection import Master, RegionServer
from twopc.sinks.hbase.errors import FAILURES, AbsentTableError, RemoteError
from twopc.sinks.hbase.messages import TableNotFoundException, name_parts, zookeeper_pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.sinks.hbase.messages import Message

#: The HBase default for ``zookeeper.znode.parent``.
ZNODE: Final = "/hbase"
_MAGIC: Final = len(b"PBUF")

Address = tuple[str, int]
T = TypeVar("T")


class Region(NamedTuple):
    """A region and its server."""

    start: bytes
    end: bytes
    name: bytes
    server: Address


class Cluster:
    """Keeps one process's connections and region locations.

    Threads may share this object, because each call has its own connection.

    ``timeout_s`` limits the wait for one response. :class:`HBaseSink` documents the other arguments.
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
        self._lock = threading.Lock()  # never held while a server is called

    def call(self, server: Address, method: str, request: Message) -> Message:
        """Call a region server over a connection that stays open. The call may raise one of ``FAILURES``."""
        return self._with_connection(server, lambda connection: connection.send_request(request, method))

    def region_of(self, table: str, row: bytes) -> Region:
        """Find a row's region.

        Raises:
            AbsentTableError: the table does not exist.
            Exception: another error in ``FAILURES``.
        """
        with self._lock:
            known = self._regions.setdefault(table, [])
            at = bisect_right(known, row, key=lambda one: one.start) - 1
            if at >= 0 and (not known[at].end or row < known[at].end):
                return known[at]
        found = self._look_up(table, row)
        with self._lock:
            if found not in known:
                insort(known, found)  # after `forget`, this list is no longer used
        return found

    def forget(self, table: str) -> None:
        """Forget a table's region locations, because a location was wrong or a server did not respond.

        The next call looks up the locations again.
        """
        with self._lock:
            self._regions.pop(table, None)

    def describe(self, tables: Sequence[str]) -> dict[str, Message]:
        """Read the schemas of the named tables. The result omits tables that do not exist.

        HBase shows a schema only to a user with the permission CREATE or ADMIN on the table.
        """

        def describe(master: Master) -> dict[str, Message]:
            answers = {name: master.describe_table(*name_parts(name)).table_schema for name in tables}
            return {name: schemas[0] for name, schemas in answers.items() if schemas}

        return self.call_master(describe)

    def create_table(self, table: str, families: list[Message]) -> None:
        """Create a table, which comes into service later. Do nothing if it exists: another driver may just have created it."""
        try:
            self.call_master(lambda master: master.create_table(*name_parts(table), families))
        except RemoteError as error:
            if error.kind != "TableExistsException":
                raise

    def call_master(self, step: Callable[[Master], T]) -> T:
        """Call the active master. Only one thread at a time may use this function."""
        if self._master is None:
            address = locate_master(self._zookeeper, self._timeout_s, self._znode)
            self._master = Master(*address, user=self._user, timeout_s=self._timeout_s)
        try:
            return step(self._master)
        except FAILURES:  # another master may be active by now
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
            idle.append(connection)  # after an error, the connection is closed, and the next call reconnects

    def _look_up(self, table: str, row: bytes) -> Region:
        meta = self._meta = self._meta or locate_meta(self._zookeeper, self._timeout_s, self._znode)
        try:
            # The library finds the last region that begins before a row. It misses a region that begins with exactly this row.
            # For an empty row it finds the first region, which may already be split. So pass the next possible row, and check
            # below that the region is in service.
            found: Any = self._with_connection(
                meta, lambda connection: connection.locate_region(*name_parts(table), row + b"\0")
            )
        except TableNotFoundException:
            raise AbsentTableError(f"table {table!r} does not exist") from None
        except FAILURES:
            self._meta = None
            raise
        info = found.region_info
        if not found.host or info.split or info.offline or not found.key_in_region(row):
            raise ConnectionError(f"table {table!r}: the region that contains row {row!r} is not in service")
        return Region(info.start_key, info.end_key, found.get_region_name(), (found.host.decode(), int(found.port)))


def locate_master(quorum: str, timeout_s: float, znode: str = ZNODE) -> Address:
    """Find the active master's host and port. Raises ConnectionError if ZooKeeper does not list a master, or does not respond."""
    return _address(zookeeper_pb.Master.FromString(_read(quorum, f"{znode}/master", timeout_s)).master)


def locate_meta(quorum: str, timeout_s: float, znode: str = ZNODE) -> Address:
    """Find the host and port of the region server that serves ``hbase:meta``.

    Raises ConnectionError in the same cases as ``locate_master``.
    """
    data = _read(quorum, f"{znode}/meta-region-server", timeout_s)
    return _address(zookeeper_pb.MetaRegionServer.FromString(data).server)


def _read(quorum: str, znode: str, timeout_s: float) -> bytes:
    zookeeper = KazooClient(hosts=quorum, timeout=timeout_s)
    try:
        zookeeper.start(timeout_s)
        data, _ = zookeeper.get_async(znode).get(timeout=timeout_s)  # get() would wait until ZooKeeper is back
    except NoNodeError:
        raise ConnectionError(
            f"ZooKeeper at {quorum!r} has no znode {znode}: check that HBase is running, and that HBase uses this quorum and "
            "znode"
        ) from None
    except (KazooException, KazooTimeoutError) as error:
        raise ConnectionError(f"ZooKeeper at {quorum!r} does not respond: {error or type(error).__name__}") from error
    finally:
        zookeeper.stop()
        zookeeper.close()
    # The data consists of 0xff, the length of the writer's name, the name, a magic word and the message.
    name_bytes = int.from_bytes(data[1:5], "big")
    return bytes(data[5 + name_bytes + _MAGIC :])


def _address(server: Any) -> Address:
    return server.host_name, server.port
