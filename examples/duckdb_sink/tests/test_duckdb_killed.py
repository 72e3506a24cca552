"""Kill a real Spark query that writes to DuckDB."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from duckdb_sink import DuckDbSink, connect, create_tables, run

from twopc import exactly_once

POINTS = ["task.prepared", "driver.decided", "driver.committing"]


def test_a_killed_query_writes_every_row_once(kill_loop: Callable[..., Any], tmp_path: Path) -> None:
    """Like the query's tasks and driver, the reader waits until the file is free."""
    path = tmp_path / "events.db"
    create_tables(path)

    def query(frame: Any, _checkpoint: Path) -> Any:
        # By default, the driver itself would write these small batches.
        each = exactly_once(DuckDbSink("events", str(path)), write_by="tasks")
        return frame.select("key", "number").writeStream.foreachBatch(each)

    def numbers() -> list[int]:
        with closing(connect(str(path), read_only=True)) as db:
            return [number for (number,) in run(db, "SELECT number FROM events")]

    kill_loop(numbers, query=query, crash_points=POINTS, kills=5).require_exactly_once()
