"""A table, and drivers of a sink that writes to it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from tests.faulty_catalog import faulty, next_commits
from tests.warehouse import Warehouse
from twopc import IcebergSink
from twopc.sinks.iceberg.view import IcebergView

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table

TABLE = "shop.orders"
TAG = "twopc-orders"
SCHEMA = Schema(NestedField(1, "value", LongType(), required=True), NestedField(2, "note", StringType()))


class Shop:
    """See :class:`tests.unit.lake_support.LakeShop`."""

    refused = CommitFailedException
    next_commits = staticmethod(next_commits)

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

    def commits(self) -> int:
        return len(self.table().metadata.snapshots)

    def sequence_numbers(self) -> tuple[int, int]:
        """The table's last sequence number, and the highest sequence number of its snapshots."""
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
        """A commit by another writer."""
        rows = self.table().schema().as_arrow().empty_table()
        self.change(lambda table: table.append(rows.from_pylist([{"value": v} for v in values], schema=rows.schema)))

    def overtake(self) -> None:
        """See :class:`tests.unit.lake_support.LakeShop`: ``main`` has moved."""
        self.change(lambda table: table.append(table.schema().as_arrow().empty_table()))

    def named_files(self) -> set[str]:
        return {task.file.file_path.rpartition("/")[2] for task in self.table().scan().plan_files()}

    def garbage(self) -> list[Path]:
        """See :class:`tests.unit.lake_support.LakeShop`: Spark's ``remove_orphan_files`` keeps files for three days."""
        since_s, named = time.time() - 3 * 24 * 3_600, self.named_files()
        return [path for path in self.files() if path.stat().st_mtime < since_s and path.name not in named]

    def view(self) -> IcebergView:
        return IcebergView(self.sink.store(), self.sink)

    def commit_as_spark(self, query_id: str, batch: int) -> None:
        rows = self.table().schema().as_arrow().empty_table()
        properties = {"spark.sql.streaming.queryId": query_id, "spark.sql.streaming.epochId": str(batch)}
        self.change(lambda table: table.append(rows, snapshot_properties=properties))

    def alter(self) -> None:
        self.change(lambda table: table.update_spec().add_field("value", BucketTransform(4), "bucket").commit())

    def roll_back(self) -> None:
        older = self.table().metadata.snapshot_log[-2].snapshot_id
        self.change(lambda table: table.manage_snapshots().rollback_to_snapshot(older).commit())

    def recreate(self) -> None:
        with self.warehouse.catalog() as catalog:
            catalog.drop_table(TABLE)
        self.warehouse.create(TABLE, SCHEMA)

    def backup(self) -> str:
        """The place of the newest metadata."""
        return self.table().metadata_location

    def restore(self, backup: str) -> None:
        """Make the catalog name an older state of the table, as a restored backup of the catalog does."""
        with contextlib.closing(sqlite3.connect(self.warehouse.directory / "catalog.db")) as db:
            db.execute("UPDATE iceberg_tables SET metadata_location = ?", (backup,))
            db.commit()

    def lose_newest_commit(self, before: str) -> None:
        self.restore(before)

    def silent(self) -> AbstractContextManager[None]:
        return self.warehouse.silent()

    def files(self, pattern: str = "*") -> list[Path]:
        """The sink's own files."""
        data = self.warehouse.directory / "shop" / "orders" / "data"
        return sorted(path for path in data.rglob(pattern) if path.is_file() and "twopc-" in str(path))
