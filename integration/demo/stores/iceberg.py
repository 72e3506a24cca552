"""Create an Iceberg table in a REST catalog, and read it through Spark with the Iceberg runtime."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from twopc import IcebergSink
from twopc.integration.demo.stores.store import Store, TableOutput
from twopc.integration.services import ServiceError
from twopc.integration.services.iceberg import RestCatalogs
from twopc.integration.services.jars import spark_iceberg_jars
from twopc.integration.services.java import java_home
from twopc.testing.kill_loop.run import spark_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

_CATALOG: Final = "demo"
_NAMESPACE: Final = "demo"
_COLUMNS: Final = Schema(NestedField(1, "number", LongType(), required=True), NestedField(2, "key", StringType()))
_READ_TIMEOUT_S: Final = 300


@dataclass(frozen=True)
class IcebergStore(Store):
    """An Iceberg REST catalog.

    Attributes:
        uri: the catalog's address.
        directory: a directory for the catalog's data and for scratch files.
    """

    uri: str
    directory: Path

    @classmethod
    @contextlib.contextmanager
    def started(cls, directory: Path, bootstrap_servers: str) -> Iterator[IcebergStore]:
        """See :class:`Store`."""
        del bootstrap_servers
        with contextlib.closing(RestCatalogs()) as catalogs, catalogs.served(directory / "warehouse") as uri:
            load_catalog(_CATALOG, type="rest", uri=uri).create_namespace(_NAMESPACE)
            yield cls(uri, directory)

    def output(self, name: str, partitions: int) -> IcebergOutput:
        """See :class:`Store`."""
        del partitions
        return IcebergOutput(self.uri, f"{_NAMESPACE}.{name.replace('-', '_')}", str(self.directory))

    @property
    def jars(self) -> list[Path]:
        """See :class:`Store`."""
        return spark_iceberg_jars()

    @property
    def settings(self) -> dict[str, str]:
        """See :class:`Store`."""
        return catalog_settings(self.uri)


@dataclass(frozen=True)
class IcebergOutput(TableOutput):
    """An Iceberg table.

    Attributes:
        uri: the catalog's address.
        table: the table name, with the namespace.
        directory: a directory for scratch files.
    """

    title = "Iceberg"

    uri: str
    table: str
    directory: str

    def create(self) -> None:
        """See :class:`Output`."""
        load_catalog(_CATALOG, type="rest", uri=self.uri).create_table(self.table, _COLUMNS)

    def sink(self) -> IcebergSink:
        """See :class:`Output`."""
        return IcebergSink(name="demo-iceberg", catalog={"type": "rest", "uri": self.uri}, table=self.table)

    def append(self, batch: DataFrame) -> None:
        """See :class:`Output`."""
        batch.selectExpr(*self.columns).writeTo(full_name(self.table)).append()

    def rows(self) -> list[tuple[Any, Any]]:
        """See :class:`TableOutput`."""
        found = self._read()
        return list(zip(found["number"].to_pylist(), found["key"].to_pylist(), strict=True))

    def written(self) -> int:
        """See :class:`Output`."""
        table: Table = load_catalog(_CATALOG, type="rest", uri=self.uri).load_table(self.table)
        newest = table.current_snapshot()
        summary: Any = {} if newest is None else newest.summary or {}
        return int(summary.get("total-records", 0))

    def _read(self) -> Any:
        """Read the table with Spark in a separate process."""
        into, scratch = Path(self.directory) / f"{self.table}.parquet", Path(self.directory) / "reader"
        scratch.mkdir(exist_ok=True)
        given = json.dumps({"uri": self.uri, "table": self.table, "into": str(into), "scratch": str(scratch)})
        done = subprocess.run(
            [sys.executable, "-m", "twopc.integration.demo.stores.iceberg_reader", given],
            env=spark_environment(str(java_home())),
            capture_output=True,
            text=True,
            timeout=_READ_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise ServiceError(f"Spark could not read the Iceberg table {self.table}. {done.stderr[-2000:]}")
        return pq.read_table(into)


def catalog_settings(uri: str) -> dict[str, str]:
    """Return Spark's settings for the catalog."""
    prefix = f"spark.sql.catalog.{_CATALOG}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "rest",
        f"{prefix}.uri": uri,
        f"{prefix}.cache-enabled": "false",
    }


def full_name(table: str) -> str:
    """Return the name under which Spark finds a table."""
    return f"{_CATALOG}.{table}"
