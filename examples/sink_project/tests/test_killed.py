"""Kill a real Spark query, and check that the sink is exactly-once and that a function that only appends is not."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from files_sink import FilesSink

from twopc import exactly_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from twopc.testing.kill_loop import Outcome


def numbers_in(directory: Path) -> list[int]:
    """Read the numbers from a directory of JSON lines files."""
    return [json.loads(line)["number"] for file in directory.iterdir() for line in file.read_text().splitlines()]


def test_the_sink_writes_every_row_exactly_once(kill_loop: Callable[..., Outcome], tmp_path: Path) -> None:
    """The loop kills the query during a batch, and after a batch but before Spark records it."""
    sink = FilesSink("sample", str(tmp_path / "output"))

    def query(frame: DataFrame, _checkpoint: str) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(exactly_once(sink))

    outcome = kill_loop(lambda: numbers_in(sink.root / "committed"), query=query, rows=60)
    outcome.require_exactly_once()


def test_a_function_that_appends_does_not_write_rows_exactly_once(
    kill_loop: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Spark calls the function again with a batch that the function has already written."""
    output = tmp_path / "output"
    output.mkdir()
    directory = str(output)

    def append(frame: DataFrame, batch_id: int) -> None:
        rows = [json.dumps(row.asDict()) + "\n" for row in frame.collect()]
        (Path(directory) / f"{batch_id}-{uuid.uuid4().hex}.jsonl").write_text("".join(rows))

    outcome = kill_loop(lambda: numbers_in(output), foreach_batch=append, rows=40, kills=1)
    with pytest.raises(AssertionError, match="duplicated"):
        outcome.require_exactly_once()
