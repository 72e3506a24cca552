"""Define a view: the state of a table that a task or the driver has read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from twopc.sinks.lake.handle import HandleT

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.published import Published
    from twopc.sinks.lake.rolling import DataFiles
    from twopc.sinks.lake.rows import RowFormat


class View(Protocol[HandleT]):
    """The state of a table, with the sink's record, at the time of reading."""

    @property
    def table_id(self) -> str:
        """The table id, which changes if the table is recreated."""

    @property
    def stored(self) -> bytes | None:
        """The sink's control record; None if the sink has not written a record yet."""

    @property
    def outcome(self) -> Published:
        """The outcome of the newest decision."""

    @property
    def files(self) -> Files:
        """The table's storage."""

    def root(self, sink_id: str) -> str:
        """Return the directory for the sink's data files. ``sink_id`` is the id in the control record."""

    def require_supported(self) -> None:
        """Reject a table with features that this sink does not support.

        Raises:
            ConfigurationError: the table has an unsupported feature. The message identifies the feature and says what to do.
        """

    def row_format(self, schema: pa.Schema) -> RowFormat:
        """Determine how to convert rows with this schema to the table's rows.

        Raises:
            SchemaError: the columns do not fit the table.
        """

    def data_files(self) -> DataFiles[Any]:
        """Return an object that creates data files for the table."""

    def handle(self, **common: Any) -> HandleT:
        """Make the handle for files that were written for this view. ``common`` has the attributes of :class:`LakeHandle`."""

    def is_current(self, handle: HandleT) -> bool:
        """Return whether the table's definition is the same as when a handle's files were written."""
