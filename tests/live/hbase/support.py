"""Helpers for the HBase sink's tests: direct access to HBase, and a driver that wakes up late."""

from __future__ import annotations

import contextlib
import copy
import random
import time
import uuid
from typing import TYPE_CHECKING, Any

from hbasedriver.protobuf_py import Master_pb2 as master_pb
from hbasedriver.protobuf_py import Snapshot_pb2 as snapshot_pb
from tenacity import wait_fixed

from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.apply import Applier
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.cluster import Cluster
from twopc.sinks.hbase.errors import FAILURES
from twopc.sinks.hbase.fence import Fence, starts_of
from twopc.sinks.hbase.mappings import COUNTER
from twopc.sinks.hbase.messages import hbase_pb, name_parts
from twopc.sinks.hbase.row_ops import Op, cells_of, put
from twopc.sinks.hbase.staging import STATE, own_row

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from twopc.sinks.hbase.connection import Master, RegionServer
    from twopc.sinks.hbase.mappings import Mapping
    from twopc.sinks.hbase.row_ops import Cell, Column
    from twopc.sinks.hbase.staging import HBaseHandle

FAMILY = b"d"
_DEADLINE_S = 60


def unique() -> str:
    """A sink name and row key prefix."""
    return f"h{uuid.uuid4().hex[:10]}"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def lose_answers(monkeypatch: pytest.MonkeyPatch, *kinds: type[RegionServer | Master]) -> None:
    """From now on, lose a quarter of these servers' responses, after the server has acted."""
    rng = random.Random(1)

    def lossy(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any) -> Any:
            answer = ask(*arguments)
            if rng.random() < 0.25:
                raise ConnectionError("the response was lost")
            return answer

        return asked

    for kind in kinds:
        monkeypatch.setattr(kind, "send_request", lossy(kind.send_request))
    monkeypatch.setattr(HBaseClient, "backoff", wait_fixed(0.02))


class Store:
    """Direct access to an HBase.

    Attributes:
        zookeeper: its quorum.
        table: a table with the family ``d``.
        prefix: prefix of this test's row keys.
    """

    def __init__(self, zookeeper: str, *, znode: str = "/hbase") -> None:
        self.zookeeper = zookeeper
        self.table = f"data-{unique()}"
        self.prefix = unique()
        self._znode = znode
        self.cluster = self._connected()
        self.client = HBaseClient(self.cluster, timeout_s=20)

    def renamed(self) -> Store:
        """Return a copy of this store with a different prefix."""
        other = copy.copy(self)
        other.prefix = unique()
        return other

    def create_table(
        self,
        table: str = "",
        *,
        ttl_s: int | None = None,
        max_cell_bytes: int | None = None,
        durability: bytes = b"",
        families: list[Any] | None = None,
    ) -> None:
        """Create a table with the family ``d``, or with these families."""
        name = table or self.table
        attributes = [] if ttl_s is None else [hbase_pb.BytesBytesPair(first=b"TTL", second=b"%d" % ttl_s)]
        family = hbase_pb.ColumnFamilySchema(name=FAMILY, attributes=attributes)
        request = master_pb.CreateTableRequest()
        schema = request.table_schema
        schema.table_name.namespace, schema.table_name.qualifier = name_parts(name)
        schema.column_families.extend(families or [family])
        if max_cell_bytes is not None:
            schema.attributes.add(first=b"hbase.server.keyvalue.maxsize", second=b"%d" % max_cell_bytes)
        if durability:
            schema.attributes.add(first=b"DURABILITY", second=durability)
        self._call_master(lambda master: master.send_request(request, "CreateTable"))
        until(lambda: self._is_served(name))

    def take_out_of_service(self, table: str) -> None:
        """Disable a table, and wait until it is disabled: the call returns as soon as the master starts to disable it."""
        self._call_master(lambda master: master.disable_table(*name_parts(table)))
        until(lambda: not self._is_served(table))

    def enable(self, table: str) -> None:
        """Enable a table again."""
        self._call_master(lambda master: master.enable_table(*name_parts(table)))

    def take_snapshot(self, name: str) -> None:
        """Take a snapshot of the data table; its name belongs to the table."""
        snapshot = self._snapshot(name)
        self._call_master(lambda master: master.send_request(master_pb.SnapshotRequest(snapshot=snapshot), "Snapshot"))
        asked = master_pb.IsSnapshotDoneRequest(snapshot=snapshot)
        done: list[bool] = []

        def ask(master: Master) -> None:
            done.append(master.send_request(asked, "IsSnapshotDone").done)

        def is_done() -> bool:
            self._call_master(ask)
            return done[-1]

        until(is_done)

    def go_back(self, name: str) -> None:
        """Restore a snapshot of the data table."""
        self.take_out_of_service(self.table)
        request = master_pb.RestoreSnapshotRequest(snapshot=self._snapshot(name))
        self._call_master(lambda master: master.send_request(request, "RestoreSnapshot"))
        self.enable(self.table)  # waits for the table's lock, which the restoration holds
        until(lambda: self._is_served(self.table))

    def split(self, row: bytes) -> None:
        """Split the row's region before the row."""
        before = self.cluster.region_of(self.table, row)
        # <table>,<start>,<id>.<digest>.
        region_id = int(before.name.rsplit(b",", 1)[1].split(b".", 1)[0])
        namespace, qualifier = name_parts(self.table)
        name = hbase_pb.TableName(namespace=namespace, qualifier=qualifier)
        info = hbase_pb.RegionInfo(region_id=region_id, table_name=name, start_key=before.start, end_key=before.end)
        self._call_master(lambda master: master.split_region(info, row))

    def region_of(self, row: bytes) -> bytes:
        """The name of the row's current region; empty while the row has no region."""
        self.cluster.forget(self.table)
        try:
            return self.cluster.region_of(self.table, row).name
        except FAILURES:
            return b""

    def row(self, name: object) -> bytes:
        """The key of one of this test's rows."""
        return f"{self.prefix}:{name}".encode()

    def cells(self, name: object) -> dict[Column, Cell]:
        """The cells of a row."""
        rows = list(self.client.scan(self.table, self.row(name), FAMILY))
        return {
            key: cell
            for result in rows
            if result.cell[0].row == self.row(name)
            for key, cell in cells_of(result).items()
        }

    def value(self, name: object, qualifier: bytes = b"v") -> bytes | None:
        """The value of a cell."""
        cell = self.cells(name).get((FAMILY, qualifier))
        return None if cell is None else cell.value

    def total(self, name: object, qualifier: bytes = b"v") -> int:
        """The value of a counter."""
        value = self.value(name, qualifier)
        return 0 if value is None else int(COUNTER.unpack(value)[0])

    def write(self, name: object, value: bytes, *, at_ms: int | None = None) -> None:
        """Write a cell as another client would."""
        mutation = put(self.row(name), {(FAMILY, b"v"): value}, at_ms=at_ms)
        assert self.client.execute([Op(self.table, self.row(name), mutations=(mutation,))]) == [True]

    def all_cells(self) -> dict[bytes, dict[Column, Cell]]:
        """All rows of this test."""
        found = self.client.scan(self.table, self.prefix.encode() + b":", FAMILY)
        return {result.cell[0].row: cells_of(result) for result in found}

    def slices(self, sink: str) -> list[bytes]:
        """The row keys of a sink's slices."""
        return [result.cell[0].row for result in self.client.scan("twopc", own_row(sink, "slice/"), STATE)]

    def close(self) -> None:
        self.client.close()

    def _snapshot(self, name: str) -> Any:
        return snapshot_pb.SnapshotDescription(name=f"{name}-{self.table}", table=self.table)

    def _call_master(self, step: Callable[[Master], None]) -> None:
        """Call the master over a new connection; an earlier test may have killed HBase behind a kept one."""
        with contextlib.closing(self._connected()) as cluster:
            cluster.call_master(step)

    def _connected(self) -> Cluster:
        return Cluster(self.zookeeper, znode=self._znode, user="tests", timeout_s=20)

    def _is_served(self, table: str) -> bool:
        try:
            self.client._scan_once(table, b"x", b"y", FAMILY)
        except FAILURES:
            return False
        return True


class Sleeper:
    """A driver that wakes up in the middle of its commit, and finishes that commit."""

    def __init__(self, sink: HBaseSink) -> None:
        self._sink = sink
        self._client = sink.create_client()
        self.fence = Fence(self._client, table=sink.staging_table, sink=sink.name)
        self._applier = Applier(self._client, self.fence, table=sink.staging_table, sink=sink.name)

    def begin(self, handle: HBaseHandle, scan_start: dict[str, Any]) -> None:
        """Do everything before the first chunk."""
        self.fence.raise_to(scan_start["base"], scan_start["base"])
        self.fence.begin(handle.uuid, scan_start["base"])

    def apply_chunk(self, handle: HBaseHandle, scan_start: dict[str, Any], done: int) -> list[str] | None:
        """Apply one chunk without recording it as done."""
        base = scan_start["base"]
        return self._applier.apply_chunk(handle, base, starts_of([handle], base, {})[handle], done)

    def close(self) -> None:
        self._client.close()


def sink_of(store: Store, mapping: Mapping, **arguments: Any) -> HBaseSink:
    return HBaseSink(
        **{
            "name": unique(),
            "zookeeper": store.zookeeper,
            "table": store.table,
            "mapping": mapping,
            "timeout_ms": 10_000,
            **arguments,
        }
    )
