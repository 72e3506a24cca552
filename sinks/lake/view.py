"""Define a view: a table as a task or the driver has read it once."""

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
    """A table as it was read once, with the sink's record in it."""

    @property
    def table_id(self) -> str:
        """The table's id, which changes if somebody recreates the table."""

    @property
    def stored(self) -> bytes | None:
        """The sink's control record; None if the sink has not written one yet."""

    @property
    def outcome(self) -> Published:
        """The outcome of the newest decision."""

    @property
    def files(self) -> Files:
        """The table's storage."""

    def root(self, sink_id: str) -> str:
        """Return the directory of the sink's data files, for the id in the control record."""

    def require_supported(self) -> None:
        """Refuse a table with features that this sink does not support.

        Raises:
            ConfigurationError: the table has such a feature. The message names the feature and says what to do.
        """

    def row_format(self, schema: pa.Schema) -> RowFormat:
        """Determine how rows with these columns become rows of the table.

        Raises:
            SchemaError: the columns do not fit the table.
        """

    def data_files(self) -> DataFiles[Any]:
        """Return the maker of the table's data files."""

    def handle(self, **common: Any) -> HandleT:
        """Make the handle of files that were written for this view, with these attributes of :class:`LakeHandle`."""

    def is_current(self, handle: HandleT) -> bool:
        """Tell whether the table still has the definition with which a handle's files were written."""
