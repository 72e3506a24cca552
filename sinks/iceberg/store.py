"""Access a catalog and its table, for one writer or one committer. Every error is a StoreError."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from twopc.redaction import secrets_in
from twopc.sinks.iceberg.errors import translated
from twopc.sinks.iceberg.private import delete_old_metadata, limit_time, load_all_snapshots, open_catalog, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate


class Store:
    """Accesses a table in a catalog.

    Args:
        properties: the pyiceberg properties for the catalog; ``name`` is the catalog's name. pyiceberg adds other properties
            from the environment or from its configuration file.
        table: ``namespace.table``.
        timeout_ms: how long one request to the catalog may take.
    """

    def __init__(self, properties: Mapping[str, str], table: str, *, timeout_ms: int) -> None:
        self._properties = dict(properties)
        self._table = table
        self._timeout_ms = timeout_ms
        self._catalog: Catalog | None = None

    def only_read(self) -> None:
        """From now on, do not create an SQL catalog's own tables.

        By default, pyiceberg creates them when it opens the catalog.
        """
        self._properties["init_catalog_tables"] = "false"

    def load(self) -> Table:
        """Read the table's newest metadata."""
        with translated(f"loading table {self._table}"):
            return self._opened().load_table(self._table)

    def commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> None:
        """Try to commit once. pyiceberg's own commit would retry without most of the requirements."""
        with translated(f"committing to table {self._table}"):
            response = self._opened().commit_table(table, requirements, updates)
        delete_old_metadata(table, response.metadata)

    def close(self) -> None:
        """Release the connections."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def _opened(self) -> Catalog:
        if self._catalog is None:
            translated.redacted.add(secrets_in(whole(self._properties)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pyiceberg triggers warnings in its own dependencies
                self._catalog = open_catalog(self._properties, self._timeout_ms)
            limit_time(self._catalog, self._timeout_ms)
            load_all_snapshots(self._catalog)
        return self._catalog
