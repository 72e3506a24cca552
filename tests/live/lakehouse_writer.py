"""Spark's own streaming writers of Iceberg and Delta, in a separate Spark: ``python -m tests.live.lakehouse_writer JSON``.

It writes the rows of a directory of JSON files that are not yet in the table, and then ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.outputs import CATALOG, session_settings
from tests.live.spark_query import session
from twopc.integration.services.jars import spark_delta_jars, spark_iceberg_jars

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Writer:
    """One of the writers.

    Attributes:
        format: ``iceberg`` or ``delta``.
        table: the name of the table in the catalog, or its directory.
        uri: the REST catalog; empty for Delta.
        source: the directory of the files.
        columns: their columns.
        checkpoint: the query's.
        scratch: the directory for Spark's own files.
    """

    format: str
    table: str
    uri: str
    source: str
    columns: str
    checkpoint: str
    scratch: str

    def run(self) -> None:
        """Run the query in a separate process."""
        command = [sys.executable, "-m", __name__, json.dumps(asdict(self))]
        subprocess.run(command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)}, check=True)

    def write(self) -> None:
        """Run the query in this process."""
        jars = ",".join(map(str, (*spark_iceberg_jars(), *spark_delta_jars())))
        spark = session(Path(self.scratch), settings={"spark.jars": jars, **session_settings(self.uri)})
        rows = spark.readStream.schema(self.columns).option("maxFilesPerTrigger", 1).json(self.source)
        writer = rows.writeStream.format(self.format)
        writer = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        query = writer.toTable(f"{CATALOG}.{self.table}") if self.uri else writer.start(self.table)
        query.awaitTermination()
        spark.stop()


if __name__ == "__main__":
    Writer(**json.loads(sys.argv[1])).write()
