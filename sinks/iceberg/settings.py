"""Check the arguments of an Iceberg sink. :class:`twopc.sinks.iceberg.IcebergSink` documents them."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twopc.errors import ConfigurationError
from twopc.sinks.arguments import Arguments
from twopc.sinks.fresh import fresh
from twopc.sinks.iceberg.catalogs import logs_in_readably, objections
from twopc.sinks.iceberg.objections import find_objections
from twopc.sinks.iceberg.private import whole
from twopc.sinks.iceberg.rows import fit_rows
from twopc.sinks.iceberg.store import Store
from twopc.sinks.lake.errors import explaining

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyiceberg.table import Table

    from twopc.sinks.lake.rows import RowFormat

logger = logging.getLogger(__name__)

_OUTSIDE: Final = "the environment (PYICEBERG_CATALOG__…) or .pyiceberg.yaml"
_TABLE: Final = re.compile(r"[^.\s]+(\.[^.\s]+)+")


@dataclass(frozen=True, kw_only=True)
class IcebergSettings(Arguments):
    """The settings that a writer and a committer need; see :class:`Arguments`."""

    positive: ClassVar = (*Arguments.positive, "orphan_age_ms")

    catalog: Mapping[str, str] = field(repr=False, hash=False)  # may contain credentials
    table: str
    timeout_ms: int = 60_000
    orphan_age_ms: int = 3 * 24 * 3_600_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(_TABLE.fullmatch(self.table), "table", "pass 'namespace.table'")
        self._require(
            isinstance(self.catalog, dict) and all(isinstance(key, str) for key in self.catalog),
            "catalog",
            "pass the pyiceberg properties for the catalog, such as {'type': 'rest', 'uri': 'https://…'}",
        )
        self._require(isinstance(self.catalog.get("name", ""), str), "catalog", "the value of 'name' must be a string")
        for objection in objections(self.catalog):
            self._refuse("catalog", objection)
        properties = self._whole()
        for objection in objections(properties):
            self._refuse("catalog", f"pyiceberg adds properties from {_OUTSIDE}. With these properties, {objection}")
        if logs_in_readably(properties):
            logger.warning(
                "sink %r: the catalog's uri begins with http://, so others on the network can read the token or the credential "
                "that the sink sends to the catalog. Use https://",
                self.name,
            )

    def store(self) -> Store:
        """Create a store. The store loads the table later. The caller must close the store."""
        return Store(self.catalog, self.table, timeout_ms=self.timeout_ms)

    def require_supported(self, table: Table) -> None:
        """Reject a table with features or settings that this sink does not support.

        Raises:
            ConfigurationError: the table has an unsupported feature or setting. The message identifies the feature or
                setting, and says what to do.
        """
        for objection in find_objections(table.metadata):
            raise ConfigurationError(f"sink {self.name!r}: table {self.table} {objection}. Nothing was written")

    def _whole(self) -> Mapping[str, Any]:
        try:
            return whole(self.catalog)
        except ValueError as error:  # pyiceberg shows only names
            self._refuse("catalog", f"pyiceberg cannot read the properties in {_OUTSIDE}: {error}. Correct them")


@fresh
def row_format(settings: IcebergSettings, schema: pa.Schema) -> RowFormat:
    """Determine how to write a batch's rows. The driver reads the table at most once every 30 s. Each task reads it, too.

    Raises:
        SchemaError: the columns do not fit the table.
        ConfigurationError: the table cannot be read, or it has a feature or setting that the sink does not support.
    """
    with (
        explaining(f"sink {settings.name!r}, reading table {settings.table}"),
        contextlib.closing(settings.store()) as store,
    ):
        table = store.load()
    settings.require_supported(table)
    return fit_rows(schema, table.schema(), table.spec(), settings.table)
