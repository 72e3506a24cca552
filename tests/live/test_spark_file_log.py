"""Spark appends a batch's entries at the end of a file source's compacted log, so its end alone shows them."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

from tests.live.spark_support import spark
from twopc.files import LocalFiles
from twopc.integration.spark import checkpoint
from twopc.integration.spark.checkpoint import source_offsets

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

__all__ = ["spark"]


def test_the_end_of_a_log_that_spark_has_compacted_contains_all_entries_of_a_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / f"in/{number}").write_text(f"{number}")
        os.utime(tmp_path / f"in/{number}", (number, number))
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", 2)
    try:
        lines = spark.readStream.option("maxFilesPerTrigger", 3).text(str(tmp_path / "in"))
        written = lines.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        written.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")
    _, *lines_of_all = (tmp_path / "checkpoint/sources/0/3.compact").read_bytes().splitlines()
    assert len(lines_of_all) == 12
    own = sorted(line for line in lines_of_all if json.loads(line)["batchId"] == 3)
    assert len(own) == 3
    monkeypatch.setattr(checkpoint, "_END_BYTES", 16)
    (offset,) = source_offsets(LocalFiles(tmp_path / "checkpoint"), 3) or ()
    assert json.loads(offset)["digest"] == hashlib.sha256(b"\n".join(own)).hexdigest()
