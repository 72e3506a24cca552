"""A user-defined sink raises its own error class from a task on real Spark."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.guide import SqliteSink, create_tables
from tests.live.file_query import Query
from tests.live.spark_support import spark
from twopc.errors import UnavailableError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from twopc.attempt import TaskAttempt
    from twopc.writer import SinkWriter


__all__ = ["spark"]


class StoreBusyError(UnavailableError):
    """The class that a user derived for a store that is busy."""


class BusyAtFirst(SqliteSink):  # type: ignore[misc]
    """The guide's sink, but its store is busy during the first attempt, even if Spark runs the task again."""

    def create_writer(self, task: TaskAttempt) -> SinkWriter[Any]:
        writer: SinkWriter[Any] = super().create_writer(task)
        write, first = writer.write, Path(f"{self.path}.first-attempt")

        def busy(rows: pa.RecordBatch) -> None:
            if not first.exists():
                first.write_text(str(task.attempt))
            if first.read_text() == str(task.attempt):
                raise StoreBusyError("the store is busy")
            write(rows)

        writer.write = busy  # type: ignore[method-assign]
        return writer


@pytest.mark.whole
def test_a_retriable_error_of_a_user_defined_class_is_retried_in_a_task(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "payments.db"
    create_tables(path)
    query = Query(spark, tmp_path, (BusyAtFirst("payments", str(path)),), {"write_by": "tasks"})
    query.feed({"id": "ann", "n": 7})
    query.run("id AS customer", "n AS cents")
    assert Path(f"{path}.first-attempt").exists()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT customer, cents FROM payments").fetchall() == [("ann", 7)]
