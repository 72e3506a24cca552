"""Read an Iceberg table and the sink's tag at one point in time."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from twopc.sinks.iceberg.data_files import NewFiles
from twopc.sinks.iceberg.definition import Definition, current
from twopc.sinks.iceberg.files import TableFiles
from twopc.sinks.iceberg.handle import IcebergHandle
from twopc.sinks.iceberg.layout import entrance, root
from twopc.sinks.iceberg.private import whole
from twopc.sinks.iceberg.record import read_tag
from twopc.sinks.iceberg.rows import fit_rows
from twopc.sinks.lake.published import Published

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.sinks.iceberg.settings import IcebergSettings
    from twopc.sinks.iceberg.store import Store
    from twopc.sinks.lake.rows import RowFormat


class IcebergView:
    """See :class:`twopc.sinks.lake.view.View`.

    Attributes:
        table: the table with the metadata that was read.
        tagged: the snapshot to which the sink's tag points.
        files: the table's storage.
    """

    def __init__(self, store: Store, settings: IcebergSettings) -> None:
        self._settings = settings
        self.table = store.load()
        self.tagged = read_tag(self.table.metadata, settings.name)
        self.files = TableFiles(self.table.io)

    @property
    def table_id(self) -> str:
        """See :class:`View`."""
        return str(self.table.metadata.table_uuid)

    @property
    def stored(self) -> bytes | None:
        """See :class:`View`."""
        return self.tagged.control if self.tagged else None

    @property
    def outcome(self) -> Published:
        """See :class:`View`."""
        return self.tagged.published if self.tagged else Published()

    def root(self, sink_id: str) -> str:
        """See :class:`View`."""
        settings = self._settings
        return root(self.table.metadata, settings.name, sink_id, entrance(whole(settings.catalog), settings.table))

    def require_supported(self) -> None:
        """See :class:`View`."""
        self._settings.require_supported(self.table)

    def row_format(self, schema: pa.Schema) -> RowFormat:
        """See :class:`View`."""
        return fit_rows(schema, self.table.schema(), self.table.spec(), self._settings.table)

    def data_files(self) -> NewFiles:
        """See :class:`View`."""
        return NewFiles(self.table)

    def handle(self, **common: Any) -> IcebergHandle:
        """See :class:`View`."""
        return IcebergHandle(**self._definition._asdict(), **common)

    def is_current(self, handle: IcebergHandle) -> bool:
        """See :class:`View`."""
        return handle.definition.is_same(self._definition)

    @cached_property
    def _definition(self) -> Definition:
        return current(self.table.metadata)
