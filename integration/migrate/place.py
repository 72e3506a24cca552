"""Open a query's checkpoint: a local directory, or a URL that a local Spark session can open (HDFS, object stores)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from twopc.errors import ConfigurationError, missing_extra
from twopc.files import Files, LocalFiles
from twopc.integration.local_paths import is_elsewhere, local_path
from twopc.tried_files import tried

if TYPE_CHECKING:
    from collections.abc import Iterator


class DatedFiles(Files, Protocol):
    """Files that also show when they were written."""

    def modified_ms(self, name: str) -> int | None:
        """Return when the file was last written, in ms since 1970 UTC. Return None if the file does not exist."""


@dataclass(frozen=True)
class Place:
    """An open checkpoint.

    Attributes:
        files: the files that Spark writes.
        own: the toolkit's directory ``twopc`` in the checkpoint.
    """

    files: DatedFiles
    own: Files

    def writable(self) -> Files:
        """Test the directory ``twopc`` and return it. Treat a network share without hard links like an object store.

        Raises:
            ConfigurationError: the directory cannot be written to. Nothing has changed.
        """
        return tried(self.own)


@contextlib.contextmanager
def opened(location: str) -> Iterator[Place]:
    """Open a checkpoint.

    To open a URL, install PySpark, and use a ``spark-defaults.conf`` with the file system's jars and credentials.

    Raises:
        ConfigurationError: the directory does not exist or cannot be opened, or PySpark is not installed.
    """
    if not is_elsewhere(location):
        path = local_path(location)
        if not path.is_dir():
            raise ConfigurationError(f"--checkpoint {location} is not a directory")
        yield Place(LocalFiles(path), LocalFiles(path / "twopc"))
        return
    try:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - local directories do not need Spark
        from pyspark.errors import PySparkException  # noqa: PLC0415 - local directories do not need Spark
        from pyspark.sql import SparkSession  # noqa: PLC0415 - local directories do not need Spark

        from twopc.integration.spark.hadoop_files import open_files  # noqa: PLC0415 - local directories do not need Spark
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(missing_extra("--checkpoint with a URL", "spark", error))) from error
    running = SparkSession.getActiveSession()
    builder = SparkSession.builder.master("local[1]").appName("twopc migrate").config("spark.ui.enabled", "false")
    session = running or builder.getOrCreate()
    try:
        context, root = session.sparkContext, location.rstrip("/")
        yield Place(open_files(context, root), open_files(context, f"{root}/twopc"))
    except (Py4JJavaError, PySparkException) as error:
        cause = getattr(error, "java_exception", None)
        text = error if cause is None else cause.toString()
        raise ConfigurationError(f"--checkpoint {location} cannot be read: {text}") from error
    finally:
        if running is None:
            session.stop()
