"""A table, drivers of a sink that writes to it, and commits of deltalake that fail or wait at a chosen moment."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from twopc import DeltaSink
from twopc.sinks.delta.view import DeltaView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

APP = "twopc/orders"
_COLUMNS: list[Any] = [pa.field("value", pa.int64(), nullable=False), pa.field("note", pa.string())]
SCHEMA = pa.schema(_COLUMNS)


@contextlib.contextmanager
def next_commits(*faults: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Pass the next commits of this process to these functions, one each. The commit itself is deltalake's own."""
    patched: Any = DeltaTable
    real, waiting = patched.create_write_transaction, list(faults)

    def create_write_transaction(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        def send() -> None:
            real(table, *args, **kwargs)

        if waiting:
            waiting.pop(0)(send)
        else:
            send()

    patched.create_write_transaction = create_write_transaction
    try:
        yield
    finally:
        patched.create_write_transaction = real
    assert not waiting, f"{len(waiting)} of {len(faults)} commits were never sent"


class Shop:
    """See :class:`tests.unit.lake_support.LakeShop`."""

    refused = CommitFailedError
    next_commits = staticmethod(next_commits)

    def __init__(self, directory: Path, schema: pa.Schema = SCHEMA, **how: Any) -> None:
        self.path = directory / "orders"
        self._schema = schema
        DeltaTable.create(str(self.path), schema, **how)
        self.sink = self.named("orders")

    def named(self, name: str, **settings: Any) -> DeltaSink:
        return DeltaSink(name=name, table_uri=str(self.path), **{"timeout_ms": 2_000, **settings})

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def rows(self) -> pa.Table:
        return self.table().to_pyarrow_table()

    def values(self) -> list[int]:
        found: list[Any] = self.rows().column("value").to_pylist()
        return sorted(found)

    def commits(self) -> int:
        return self.table().version()

    def pointer(self) -> int | None:
        return self.table().transaction_version(APP)

    def append(self, *values: int) -> None:
        """A commit by another writer."""
        write_deltalake(str(self.path), pa.table({"value": values, "note": ["theirs"] * len(values)}), mode="append")

    def files(self, pattern: str = "*") -> list[Path]:
        """The sink's own data files."""
        return sorted(path for path in self.path.glob(f"twopc-*/*/*/*/*/{pattern}") if path.is_file())

    def records(self) -> list[Path]:
        return sorted(self.path.glob("_twopc/*/*.json"))

    def commit_by_hand(self, *actions: Mapping[str, Any]) -> None:
        """Add a version to the log that deltalake could not write."""
        name = f"{self.commits() + 1:020}.json"
        (self.path / "_delta_log" / name).write_text("\n".join(map(json.dumps, actions)))

    def overtake(self) -> None:
        """See :class:`tests.unit.lake_support.LakeShop`: the table's metadata has changed."""
        self.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 20 days"})

    def named_files(self) -> set[str]:
        return {uri.rpartition("/")[2] for uri in self.table().file_uris()}

    def garbage(self) -> list[Path]:
        return [self.path / name for name in self.table().vacuum(dry_run=True, full=True)]

    def view(self) -> DeltaView:
        return DeltaView(self.sink.store(), self.sink)

    def commit_as_spark(self, query_id: str, batch: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        parameters = {"outputMode": "Append", "queryId": query_id, "epochId": str(batch)}
        info = {"timestamp": now_ms, "operation": "STREAMING UPDATE", "operationParameters": parameters}
        done = {"appId": query_id, "version": batch, "lastUpdated": now_ms}
        self.commit_by_hand({"commitInfo": info}, {"txn": done})

    def alter(self) -> None:
        self.table().alter.add_columns([Field("more", PrimitiveType("long"))])

    def roll_back(self) -> None:
        self.table().restore(self.commits() - 1)

    def recreate(self) -> None:
        shutil.rmtree(self.path)
        DeltaTable.create(str(self.path), self._schema)

    def backup(self) -> Path:
        """A copy of all files."""
        return Path(shutil.copytree(self.path, self.path.with_name(f"backup-{uuid.uuid4().hex}")))

    def restore(self, backup: Path) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(backup, self.path)

    def lose_newest_commit(self, before: Path) -> None:
        del before
        (self.path / "_delta_log" / f"{self.commits():020}.json").unlink()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        away = self.path.rename(self.path.with_name("away"))
        try:
            yield
        finally:
            away.rename(self.path)
