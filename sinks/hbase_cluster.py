"""Where things are in an HBase: asked of its masters and region servers, without ZooKeeper."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sinks.hbase_channel import Channel, RemoteError
from sinks.hbase_errors import AbsentTableError
from sinks.hbase_messages import Message, client, hbase, master, region, registry, table_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_META: Final = b"hbase:meta,,1"
#: Above every region id, so that a scan backwards begins with the last region that begins at or before a row.
_ABOVE_IDS: Final = b":"
_PREFIX_OF_MESSAGES: Final = len(b"PBUF")

Address = tuple[str, int]


class Region(NamedTuple):
    """A region and who serves it."""

    start: bytes
    end: bytes
    name: bytes
    server: Address


class Cluster:
    """Connections and locations of one process. Used by one thread.

    Args:
        servers: masters or region servers (HBase 2.5), any of which is asked for the rest.
        user: who this is.
        timeout_s: how long one answer may take, in seconds.
    """

    def __init__(self, servers: Sequence[Address], *, user: str, timeout_s: float) -> None:
        self._servers = servers
        self._user = user
        self._timeout_s = timeout_s
        self._channels: dict[tuple[Address, str], Channel] = {}
        self._meta: Address | None = None
        self._regions: dict[str, list[Region]] = {}

    def call(self, server: Address, service: str, method: str, request: Message, response: type[Message]) -> Message:
        """Call a server, over a connection that is kept.

        Raises:
            Exception: one of ``hbase_errors.FAILURES``.
        """
        place = server, service
        if place not in self._channels:
            self._channels[place] = Channel(*server, service, user=self._user, timeout_s=self._timeout_s)
        try:
            return self._channels[place].call(method, request, response)
        except OSError:
            self._channels.pop(place).close()
            raise

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
        self._regions[table] = sorted([found, *(one for one in known if not _overlap(one, found))])
        return found

    def forget(self, table: str, row: bytes) -> None:
        """Ask anew where a row is: what was known was wrong, or nobody answered there."""
        known = self._regions.get(table, [])
        self._regions[table] = [one for one in known if row < one.start or (one.end and row >= one.end)]
        self._meta = None

    def describe(self, tables: Sequence[str]) -> dict[str, Message]:
        """The schemas of tables, by name; what does not exist is not there."""
        request = master.GetTableDescriptorsRequest(table_names=[table_name(name) for name in tables])
        answer = self.ask_master("GetTableDescriptors", request, master.GetTableDescriptorsResponse)
        by_name = {schema.table_name.SerializeToString(): schema for schema in answer.table_schema}
        found = {name: by_name.get(table_name(name).SerializeToString()) for name in tables}
        return {name: schema for name, schema in found.items() if schema is not None}

    def ask_master(self, method: str, request: Message, response: type[Message]) -> Message:
        """Call the active master."""
        found = self._ask_registry(
            "GetActiveMaster", registry.GetActiveMasterRequest(), registry.GetActiveMasterResponse
        )
        return self.call(_address(found.server_name), "MasterService", method, request, response)

    def cluster_id(self) -> str:
        """The id that this HBase was given when it was made."""
        request, response = registry.GetClusterIdRequest(), registry.GetClusterIdResponse
        return str(self._ask_registry("GetClusterId", request, response).cluster_id)

    def close(self) -> None:
        """Close the connections."""
        while self._channels:
            self._channels.popitem()[1].close()

    def _look_up(self, table: str, row: bytes) -> Region:
        name = table.removeprefix("default:").encode()
        scan = client.Scan(start_row=b"%s,%s,%s" % (name, row, _ABOVE_IDS), reversed=True, include_start_row=True)
        scan.column.add(family=b"info")
        request = client.ScanRequest(region=region(_META), scan=scan, number_of_rows=1, close_scanner=True)
        answer = self.call(self._meta_server(), "ClientService", "Scan", request, client.ScanResponse)
        cells: dict[bytes, Any] = {cell.qualifier: cell for result in answer.results for cell in result.cell}
        info = cells.get(b"regioninfo")
        if info is None or not info.row.startswith(name + b","):
            raise AbsentTableError(f"there is no table {table!r}")
        found = hbase.RegionInfo.FromString(info.value[_PREFIX_OF_MESSAGES:])
        server = cells[b"server"].value.decode() if b"server" in cells else ""
        if not server or found.split or found.offline:
            raise ConnectionError(f"table {table!r}: the region of row {row!r} is not in service now")
        host, _, port = server.rpartition(":")
        return Region(found.start_key, found.end_key, info.row, (host, int(port)))

    def _meta_server(self) -> Address:
        if self._meta is None:
            request, response = registry.GetMetaRegionLocationsRequest(), registry.GetMetaRegionLocationsResponse
            locations = self._ask_registry("GetMetaRegionLocations", request, response).meta_locations
            if not locations or not locations[0].server_name.host_name:
                raise ConnectionError("hbase:meta is not in service now")
            self._meta = _address(locations[0].server_name)
        return self._meta

    def _ask_registry(self, method: str, request: Message, response: type[Message]) -> Message:
        failure: Exception = ConnectionError("no server is given")
        for server in self._servers:
            try:
                return self.call(server, "ClientMetaService", method, request, response)
            except (RemoteError, OSError) as error:  # the next one may know
                failure = error
        raise failure


def _overlap(one: Region, other: Region) -> bool:
    return (not one.end or other.start < one.end) and (not other.end or one.start < other.end)


def _address(server: Message) -> Address:
    return server.host_name, server.port
