"""A table, and drivers of a sink that writes to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.faulty_catalog import faulty
from tests.warehouse import Warehouse
from twopc import IcebergSink
from twopc.attempt import Attempt, TaskAttempt
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, run_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table

    from twopc.attempt import Evidence
    from twopc.sinks.iceberg.handle import IcebergHandle

TABLE = "shop.orders"
TAG = "twopc-orders"
SCHEMA = Schema(NestedField(1, "value", LongType(), required=True), NestedField(2, "note", StringType()))


class Shop:
    """See above."""

    def __init__(
        self, place: Path | Warehouse, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC, **properties: str
    ) -> None:
        self.warehouse = place if isinstance(place, Warehouse) else Warehouse(place / "warehouse", timeout_s=0.2)
        self.warehouse.create(TABLE, SCHEMA, spec, **properties)
        self.sink = self.named("orders")

    def named(self, name: str, **settings: Any) -> IcebergSink:
        given = {"timeout_ms": 2_000, **settings}
        return IcebergSink(name=name, catalog=faulty(self.warehouse.properties), table=TABLE, **given)

    def values(self) -> list[int]:
        return sorted(self.warehouse.column(TABLE, "value"))

    def table(self) -> Table:
        return self.warehouse.table(TABLE)

    def snapshots(self) -> int:
        return len(self.table().metadata.snapshots)

    def sequence_numbers(self) -> tuple[int, int]:
        """The table's last one, and the highest of its snapshots."""
        metadata: Any = self.table().metadata
        return metadata.last_sequence_number, max(one.sequence_number for one in metadata.snapshots)

    def change(self, change: Any) -> None:
        """Change the table as its owner would."""
        with self.warehouse.catalog() as catalog:
            change(catalog.load_table(TABLE))

    def edit(self, change: Any) -> None:
        """Change the newest metadata file itself, to what pyiceberg cannot write."""
        path = Path(self.table().metadata_location.removeprefix("file://"))
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    def append(self, *values: int) -> None:
        """A commit by somebody else."""
        rows = self.table().schema().as_arrow().empty_table()
        self.change(lambda table: table.append(rows.from_pylist([{"value": v} for v in values], schema=rows.schema)))

    def files(self, pattern: str = "*") -> list[Path]:
        """The sink's own files."""
        data = self.warehouse.directory / "shop" / "orders" / "data"
        return sorted(path for path in data.rglob(pattern) if path.is_file() and "twopc-" in str(path))


def prepare(driver: Driver, sink: IcebergSink, *values: int, batch: int = 0, attempt: int = 1) -> IcebergHandle:
    """Run one task of an attempt at a batch."""
    handle: IcebergHandle = run_task(sink, task_of(driver, batch, attempt), numbers(values))
    return handle


def evidence(driver: Driver, handles: Sequence[IcebergHandle], scan_start: Mapping[str, Any]) -> list[Evidence]:
    """Commit, and return the evidence in the order of the handles."""
    found = driver.committer.commit(handles, scan_start)
    return [found[handle] for handle in handles]


def task_of(driver: Driver, batch: int = 0, attempt: int = 1) -> TaskAttempt:
    """A task of an attempt at a batch."""
    return TaskAttempt(QUERY_ID, batch, Attempt(driver.driver_epoch, attempt), 0, driver.driver_epoch, -1)
