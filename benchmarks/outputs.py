"""Create, count and remove outputs for the benchmarks that read files."""

# ruff: noqa: D102 - :class:`Output` documents what its subclasses override

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from hbasedriver.client.client import Client

from benchmarks.counting import WrongCountError
from benchmarks.file_queries import COLUMNS
from benchmarks.hbase_sink import count_rows, create_table
from benchmarks.postgres_sink import execute
from benchmarks.session import spark_session
from twopc.integration.services.iceberg import RestCatalogs
from twopc.integration.services.jars import spark_delta_jars, spark_iceberg_jars
from twopc.sinks.delta import DeltaSink
from twopc.sinks.hbase import HBaseSink
from twopc.sinks.hbase.mappings import Put
from twopc.sinks.iceberg import IcebergSink
from twopc.sinks.postgres import PostgresSink
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import Set

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from twopc.integration.services.redis import LocalRedis
    from twopc.sink import TwoPhaseCommitSink

#: Spark's name for the Iceberg catalog.
CATALOG: Final = "ice"
_HBASE_TABLE: Final = "bench"
#: The server's settings for HBase. A table that splits while its rows are counted would end the client's scan.
ONE_REGION: Final = {
    "hbase.regionserver.region.split.policy": "org.apache.hadoop.hbase.regionserver.DisabledRegionSplitPolicy"
}


class Output(ABC):
    """A store. An output's name stands for one table, or for all keys that begin with the name."""

    title: str

    def create(self, name: str) -> None:  # noqa: B027 - a subclass without keys creates nothing
        """Create an empty output."""

    @abstractmethod
    def sink(self, name: str) -> TwoPhaseCommitSink[Any]:
        """Create this project's sink for the output."""

    @abstractmethod
    def count(self, name: str) -> int:
        """Count the output's distinct rows.

        Raises:
            WrongCountError: the output contains a row twice.
        """

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove the output."""


class Redis(Output):
    """Redis, with one key per row."""

    title = "Redis"

    def __init__(self, server: LocalRedis) -> None:
        self._server = server

    def sink(self, name: str) -> RedisSink:
        return RedisSink(name=name, url=self._server.url, mapping=Set(f"{name}:{{key}}", "value"))

    def count(self, name: str) -> int:
        with contextlib.closing(self._server.client()) as client:
            return sum(1 for _ in client.scan_iter(f"{name}:*", count=10_000))

    def drop(self, name: str) -> None:
        del name
        with contextlib.closing(self._server.client()) as client:
            client.flushall()


class HBase(Output):
    """HBase, with one table for all outputs."""

    title = "HBase"

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper
        self._table: Any = None

    def create(self, name: str) -> None:
        if self._table is None:
            create_table(self.sink(name))
            client = Client({"hbase.zookeeper.quorum": self._zookeeper})
            self._table = client.get_table(b"default", _HBASE_TABLE.encode())

    def sink(self, name: str) -> HBaseSink:
        mapping = Put(f"{name}:{{key}}", {"d:v": "value"})
        return HBaseSink(name=name, zookeeper=self._zookeeper, table=_HBASE_TABLE, mapping=mapping)

    def count(self, name: str) -> int:
        return count_rows(self._table, f"{name}:")

    def drop(self, name: str) -> None:
        """Do nothing, because each run has its own keys, which may stay."""


class Postgres(Output):
    """PostgreSQL, with one table per output."""

    title = "PostgreSQL"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def create(self, name: str) -> None:
        execute(self._dsn, f"CREATE TABLE {name} (id bigint NOT NULL, key text, value text)")

    def sink(self, name: str) -> PostgresSink:
        return PostgresSink(name=name, dsn=self._dsn, table=name)

    def count(self, name: str) -> int:
        # Our own name.
        return distinct(*execute(self._dsn, f"SELECT count(*), count(DISTINCT id) FROM {name}")[0])  # noqa: S608

    def drop(self, name: str) -> None:
        execute(self._dsn, f"DROP TABLE {name}")


class Lakehouse(Output):
    """A store whose tables Spark can also read and write."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @abstractmethod
    def full_name(self, name: str) -> str:
        """Return the table's name in SQL."""

    @abstractmethod
    def start(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        """Start a query with Spark's own writer."""

    def create(self, name: str) -> None:
        self._spark.sql(f"CREATE TABLE {self.full_name(name)} ({COLUMNS}) USING {self.title.lower()}")

    def count(self, name: str) -> int:
        # Our own name.
        counting = f"SELECT count(*), count(DISTINCT id) FROM {self.full_name(name)}"  # noqa: S608
        return distinct(*self._spark.sql(counting).collect()[0])


class Iceberg(Lakehouse):
    """Iceberg, with tables in a REST catalog."""

    title = "Iceberg"

    def __init__(self, spark: SparkSession, uri: str) -> None:
        super().__init__(spark)
        self._uri = uri
        spark.sql(f"CREATE NAMESPACE {CATALOG}.bench")

    def full_name(self, name: str) -> str:
        return f"{CATALOG}.bench.{name}"

    def drop(self, name: str) -> None:
        self._spark.sql(f"DROP TABLE {self.full_name(name)} PURGE")

    def sink(self, name: str) -> IcebergSink:
        return IcebergSink(name=name, catalog={"type": "rest", "uri": self._uri}, table=f"bench.{name}")

    def start(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        return writer.format("iceberg").toTable(self.full_name(name))


class Delta(Lakehouse):
    """Delta, with tables in a directory."""

    title = "Delta"

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        super().__init__(spark)
        self._directory = directory

    def full_name(self, name: str) -> str:
        return f"delta.`{self._directory / name}`"

    def drop(self, name: str) -> None:
        shutil.rmtree(self._directory / name)

    def sink(self, name: str) -> DeltaSink:
        return DeltaSink(name=name, table_uri=str(self._directory / name))

    def start(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        return writer.format("delta").start(str(self._directory / name))


@contextlib.contextmanager
def lakehouse_session(directory: Path) -> Iterator[tuple[SparkSession, str]]:
    """Start a REST catalog and a session that writes both formats; yield the session and the catalog's address."""
    with (
        contextlib.closing(RestCatalogs()) as catalogs,
        catalogs.served(directory / "warehouse") as uri,
        spark_session(
            directory, jars=(*spark_iceberg_jars(), *spark_delta_jars()), settings=session_settings(uri)
        ) as spark,
    ):
        yield spark, uri


def session_settings(uri: str) -> dict[str, str]:
    """Return the settings for a session that writes both formats.

    Args:
        uri: the REST catalog's address.
    """
    iceberg = "org.apache.iceberg.spark"
    extensions = (f"{iceberg}.extensions.IcebergSparkSessionExtensions", "io.delta.sql.DeltaSparkSessionExtension")
    return {
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"spark.sql.catalog.{CATALOG}": f"{iceberg}.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "rest",
        f"spark.sql.catalog.{CATALOG}.uri": uri,
        f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
    }


def distinct(rows: int, ids: int) -> int:
    """Return the number of rows.

    Raises:
        WrongCountError: there are fewer ids than rows.
    """
    if rows != ids:
        raise WrongCountError(f"{rows} rows have {ids} different ids")
    return rows
