"""Spark's class data archive, for the demo, the example and the tests: they start Spark many times.

``python -m integration.services.spark_class_data FLAG …`` is the run that creates it: a small streaming query with state,
Arrow and ``foreachBatch``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from integration.services.class_data import archive_in, class_data_flags
from integration.services.errors import ServiceError
from integration.services.java import FAST_START, java_home

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_TIMEOUT_S: Final = 240


def driver_flags() -> str:
    """Return a value for ``spark.driver.extraJavaOptions``. Creates the archive on first use (half a minute)."""
    # In the virtual environment, beside Spark's jars: no other environment can use it.
    directory = Path(sys.prefix) / "class-data"
    archive = archive_in(directory, f"spark-{pyspark.__version__}")
    return " ".join((*FAST_START, *class_data_flags(archive, _train)))


def _train(flags: Sequence[str]) -> None:
    command = [sys.executable, "-m", __spec__.name, *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"Spark did not finish within {_TIMEOUT_S} s") from error
    except OSError as error:
        raise ServiceError(f"Spark did not start: {error}") from error
    if done.returncode != 0:
        raise ServiceError(f"Spark ended with exit code {done.returncode}: {done.stderr[-500:]}")


def _run(flags: Sequence[str]) -> None:
    import os  # noqa: PLC0415 - only this run needs it

    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set

    os.environ |= {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory(prefix="twopc-class-data-", ignore_cleanup_errors=True) as directory:
        os.chdir(directory)
        settings = {
            "spark.driver.extraJavaOptions": " ".join((*FAST_START, *flags)),
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": directory,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        builder = SparkSession.builder.master("local[2]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        Path("source").mkdir()
        Path("source", "lines.txt").write_text("a\nb\n")
        counts = spark.readStream.text("source").groupBy("value").count()
        writer = counts.writeStream.outputMode("update").foreachBatch(_write).option("checkpointLocation", "checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr] # noqa: SLF001 - no public way to wait for its exit
        spark.stop()
        jvm.stdin.close()
        jvm.wait(_TIMEOUT_S)


def _write(batch: DataFrame, _: int) -> None:
    batch.mapInArrow(lambda rows: rows, batch.schema).collect()
    batch.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    _run(sys.argv[1:])
