"""Read a Delta table and the sink's record at one point in time."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from twopc.sinks.delta.data_files import NewFiles
from twopc.sinks.delta.handle import DeltaHandle
from twopc.sinks.delta.record import read_record
from twopc.sinks.delta.rows import fit_rows
from twopc.sinks.delta.table import Definition, definition_of
from twopc.sinks.lake import layout
from twopc.sinks.lake.published import Published

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.sinks.delta.rows import DeltaRows
    from twopc.sinks.delta.settings import DeltaSettings
    from twopc.sinks.delta.store import Store


class DeltaView:
    """See :class:`twopc.sinks.lake.view.View`.

    Attributes:
        files: the table's storage.
        table: the version of the table that was read.
        record: the record to which the sink's pointer refers.
    """

    def __init__(self, store: Store, settings: DeltaSettings) -> None:
        self._settings = settings
        self.files = store
        self.table, self.record = read_record(store, store.load(), settings.name)

    @property
    def table_id(self) -> str:
        """See :class:`View`."""
        return str(self.table.metadata().id)

    @property
    def stored(self) -> bytes | None:
        """See :class:`View`."""
        return bytes(self.record.control) if self.record else None

    @property
    def outcome(self) -> Published:
        """See :class:`View`."""
        return self.record.published if self.record else Published()

    @cached_property
    def definition(self) -> Definition:
        """The table's definition."""
        return definition_of(self.table)

    def root(self, sink_id: str) -> str:
        """See :class:`View`. The path is relative to the table's directory."""
        return layout.root(self._settings.name, sink_id)

    def require_supported(self) -> None:
        """See :class:`View`."""
        self._settings.require_supported(self.definition)

    def row_format(self, schema: pa.Schema) -> DeltaRows:
        """See :class:`View`."""
        return fit_rows(schema, self.definition, self._settings.table_uri)

    def data_files(self) -> NewFiles:
        """See :class:`View`."""
        return NewFiles(self.files, self.definition)

    def handle(self, **common: Any) -> DeltaHandle:
        """See :class:`View`."""
        return DeltaHandle(table=self.definition.fingerprint, **common)

    def is_current(self, handle: DeltaHandle) -> bool:
        """See :class:`View`."""
        return handle.table == self.definition.fingerprint
