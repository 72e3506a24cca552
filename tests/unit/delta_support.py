"""A table, drivers of a sink that writes to it, and commits of deltalake that fail or wait at a chosen moment."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from twopc import DeltaSink
from twopc.attempt import Attempt, TaskAttempt
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from twopc.attempt import Evidence
    from twopc.sinks.delta.handle import DeltaHandle

APP = "twopc/orders"
_COLUMNS: list[Any] = [pa.field("value", pa.int64(), nullable=False), pa.field("note", pa.string())]
SCHEMA = pa.schema(_COLUMNS)


class Shop:
    """See above."""

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

    def version(self) -> int:
        return self.table().version()

    def pointer(self) -> int | None:
        return self.table().transaction_version(APP)

    def append(self, *values: int) -> None:
        """A commit by somebody else."""
        write_deltalake(str(self.path), pa.table({"value": values, "note": ["theirs"] * len(values)}), mode="append")

    def files(self, pattern: str = "*") -> list[Path]:
        """The sink's own data files."""
        return sorted(path for path in self.path.glob(f"twopc-*/*/*/*/{pattern}") if path.is_file())

    def records(self) -> list[Path]:
        return sorted(self.path.glob("_twopc/*/*.json"))

    def commit_by_hand(self, *actions: Mapping[str, Any]) -> None:
        """Add a version to the log that deltalake could not write."""
        name = f"{self.version() + 1:020}.json"
        (self.path / "_delta_log" / name).write_text("\n".join(map(json.dumps, actions)))

    def backed_up(self, to: Path) -> Path:
        shutil.copytree(self.path, to)
        return to

    def restored(self, backup: Path) -> None:
        """Replace the files of the table by those of a backup."""
        shutil.rmtree(self.path)
        shutil.copytree(backup, self.path)


def prepare(driver: Driver, sink: DeltaSink, *values: int, batch: int = 0, attempt: int = 1) -> DeltaHandle:
    """Run one task of an attempt at a batch."""
    handle: DeltaHandle = run_task(sink, task_of(driver, batch, attempt), numbers(values))
    return handle


def evidence(driver: Driver, handles: Sequence[DeltaHandle], scan_start: Mapping[str, Any]) -> list[Evidence]:
    """Commit, and return the evidence in the order of the handles."""
    found = driver.committer.commit(handles, scan_start)
    return [found[handle] for handle in handles]


def task_of(driver: Driver, batch: int = 0, attempt: int = 1) -> TaskAttempt:
    """A task of an attempt at a batch."""
    return TaskAttempt(QUERY_ID, batch, Attempt(driver.driver_epoch, attempt), 0, driver.driver_epoch, -1)


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


def lost_answer(send: Callable[[], None]) -> None:
    send()
    raise OSError("the connection broke")


def lost_request(send: Callable[[], None]) -> None:
    del send
    raise OSError("the connection broke")
