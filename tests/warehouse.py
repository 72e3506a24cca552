"""A catalog in a SQLite file, and tables in a local directory. Tests read them with pyiceberg itself."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


class Warehouse:
    """See above.

    Args:
        directory: a directory that does not exist yet.
        timeout_s: how long a client waits for SQLite's lock.
        storage: properties of a storage for the tables, instead of the directory.
    """

    def __init__(self, directory: Path, *, timeout_s: float = 5, **storage: str) -> None:
        directory.mkdir()
        self.directory = directory
        self._database = directory / "catalog.db"
        self.properties: dict[str, str] = {
            "name": "test",
            "type": "sql",
            "uri": f"sqlite:///{self._database}?timeout={timeout_s}",
            "warehouse": directory.as_uri(),
            **storage,
        }

    @contextlib.contextmanager
    def catalog(self) -> Iterator[Catalog]:
        with contextlib.closing(load_catalog(self.properties["name"], **without_name(self.properties))) as catalog:
            yield catalog

    def create(
        self,
        name: str,
        schema: Schema | pa.Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        **properties: str,
    ) -> None:
        with self.catalog() as catalog:
            catalog.create_namespace_if_not_exists(name.partition(".")[0])
            catalog.create_table(name, schema, partition_spec=spec, properties=properties)

    def table(self, name: str) -> Table:
        """Return the current table. Its catalog is closed, so the table can only be read."""
        with self.catalog() as catalog:
            return catalog.load_table(name)

    def rows(self, name: str) -> pa.Table:
        return self.table(name).scan().to_arrow()

    def column(self, name: str, column: str) -> list[Any]:
        return self.rows(name).column(column).to_pylist()

    def silent(self) -> AbstractContextManager[None]:
        """Prevent any other access to the catalog in the meantime."""
        return self._locked()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self._database, isolation_level=None)) as db:
            db.execute("BEGIN EXCLUSIVE")
            yield


class RestWarehouse(Warehouse):
    """A warehouse with a REST catalog.

    Args:
        directory: the directory of the catalog's tables.
        uri: the catalog's address.
        silence: makes the catalog stop responding.
    """

    def __init__(self, directory: Path, uri: str, silence: Callable[[], AbstractContextManager[None]]) -> None:
        self.directory = directory
        self.properties = {"name": "test", "type": "rest", "uri": uri}
        self._silence = silence

    def silent(self) -> AbstractContextManager[None]:
        return self._silence()


def without_name(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key != "name"}
