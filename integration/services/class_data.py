"""Create class data archives (JEP 350, Java 13 and newer), so that Kafka and Spark load their many classes much faster.

A program's first run writes the archive when the program exits normally. Later runs map the archive into memory. A JVM that
cannot use an archive (because the class path or the Java version differs) silently runs without it.

``python -m twopc.integration.services.class_data FLAG …`` creates Spark's archive. This command runs a small streaming query
with state, Arrow and ``foreachBatch``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock

from twopc.integration.services import ServiceError
from twopc.integration.services.java import FAST_START, java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_SILENT = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
#: A file in the root of every Java installation, which contains the vendor, version and platform.
_RELEASE = "release"
_TIMEOUT_S: Final = 240


def archive_in(directory: Path, name: str) -> Path:
    """Return a program's archive file.

    The file's name identifies the Java runtime, because no other runtime can use the archive.
    """
    release = java_home() / _RELEASE
    java = release.read_bytes() if release.exists() else str(java_home()).encode()
    return directory / f"{name}-{hashlib.sha256(java).hexdigest()[:12]}.jsa"


def class_data_flags(archive: Path, train: Callable[[Sequence[str]], object]) -> tuple[str, ...]:
    """Return the JVM flags that make a program use its archive. Create the archive first if it does not exist.

    Args:
        archive: the archive's file. If the creation fails, the file stays empty, and later calls do not try again.
        train: runs the program once, with the given flags, until it exits normally.

    Returns:
        the flags; empty without an archive. Without the flags, the program works, but starts more slowly.
    """
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(archive.with_suffix(".lock")):
            if not archive.exists():
                _create(archive, train)
        is_usable = archive.stat().st_size > 0
    except OSError as error:
        logger.warning(
            "the class data archive %s cannot be written, so Java programs start more slowly. Cause: %s",
            archive,
            error,
        )
        return ()
    return (f"-XX:SharedArchiveFile={archive}", *_SILENT) if is_usable else ()


def _create(archive: Path, train: Callable[[Sequence[str]], object]) -> None:
    created = archive.with_suffix(".new")
    created.unlink(missing_ok=True)
    try:
        train((f"-XX:ArchiveClassesAtExit={created}", *_SILENT))
    except ServiceError as error:
        logger.warning(
            "a class data archive could not be created, so Java programs start more slowly. Cause: %s. To try again, delete %s",
            error,
            archive,
        )
    if not created.exists():
        created.touch()
    created.rename(archive)


def driver_flags() -> str:
    """Return a value for ``spark.driver.extraJavaOptions``. The first call creates the archive, which takes half a minute."""
    # The archive is in the virtual environment, next to Spark's jars, because no other environment can use it.
    directory = Path(sys.prefix) / "class-data"
    archive = archive_in(directory, f"spark-{importlib.metadata.version('pyspark')}")
    return " ".join((*FAST_START, *class_data_flags(archive, _train)))


def _train(flags: Sequence[str]) -> None:
    command = [sys.executable, "-m", __spec__.name, *flags]
    try:
        subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        raise ServiceError(f"Spark exited with code {error.returncode}: {error.stderr[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"Spark did not finish: {error}") from error


def _run(flags: Sequence[str]) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the process that creates the archive needs Spark

    os.environ |= {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory(prefix="twopc-class-data-", ignore_cleanup_errors=True) as directory:
        os.chdir(directory)
        settings: dict[str, bool | float | int | str | None] = {
            "spark.driver.extraJavaOptions": " ".join((*FAST_START, *flags)),
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": directory,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        Path("source").mkdir()
        Path("source", "lines.txt").write_text("a\nb\n")
        counts = spark.readStream.text("source").groupBy("value").count()
        writer = counts.writeStream.outputMode("update").foreachBatch(_write).option("checkpointLocation", "checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr] # noqa: SLF001 - no public way to wait for the JVM's exit
        spark.stop()
        jvm.stdin.close()
        jvm.wait(_TIMEOUT_S)


def _write(batch: DataFrame, _: int) -> None:
    batch.mapInArrow(lambda rows: rows, batch.schema).collect()
    batch.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    _run(sys.argv[1:])
