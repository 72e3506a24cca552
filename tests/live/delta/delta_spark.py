"""Run Delta Lake's own implementation in a separate Spark, which executes a statement for each line of its input.

Each input line is a statement with its number, and each output line contains the statement's rows, both as JSON. An
existing session cannot load jars, so this is a separate process.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twopc.integration.services.jars import spark_delta_jars
from twopc.integration.services.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[3]


class DeltaSpark:
    """The process, as its parent sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._count = 0

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Execute a statement; return its rows. Values that JSON cannot represent are returned as text.

        Raises:
            RuntimeError: Spark has refused it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._count += 1
        self._process.stdin.write(json.dumps([self._count, statement]) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = {"number": 0}
        while answer["number"] != self._count:  # a test that took too long has left an answer behind
            answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        rows: list[dict[str, Any]] = answer["rows"]
        return rows


@contextlib.contextmanager
def delta_spark() -> Iterator[DeltaSpark]:
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-m", __name__], cwd=_ROOT, text=True, **pipes) as process:
        try:
            yield DeltaSpark(process)
        finally:
            process.kill()


def main() -> None:
    import os  # noqa: PLC0415 - only the child process needs it

    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the child process needs it

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Java's own output is not a response
    os.environ["JAVA_HOME"] = str(java_home())
    with tempfile.TemporaryDirectory() as directory:
        builder = (
            SparkSession.builder.master("local[1]")
            .config("spark.jars", ",".join(map(str, spark_delta_jars())))
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "America/New_York")  # differs from the tables' time zone
            .config("spark.sql.shuffle.partitions", "1")
            # Otherwise, Delta runs 50 tasks to read a table's log, and 10,000 tasks to list its files.
            .config("spark.databricks.delta.snapshotPartitions", "1")
            .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
            .config("spark.sql.warehouse.dir", directory)
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        )
        spark = builder.getOrCreate()
        for line in sys.stdin:
            number, statement = json.loads(line)
            answer: dict[str, Any] = {"number": number}
            try:
                answer["rows"] = [row.asDict(recursive=True) for row in spark.sql(statement).collect()]
            except Exception as error:  # noqa: BLE001 - the parent raises it
                answer["error"] = str(error)
            answers.write(json.dumps(answer, default=str) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
