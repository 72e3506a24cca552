"""What a table's format gives to tasks and to the driver: one reading of a table."""

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
    """A table as it was read once, with what the sink keeps in it."""

    @property
    def table_id(self) -> str:
        """The table's id, which is another one if somebody creates the table anew."""

    @property
    def stored(self) -> bytes | None:
        """The sink's control record; None if there is none."""

    @property
    def outcome(self) -> Published:
        """The outcome of the newest decision."""

    @property
    def files(self) -> Files:
        """The table's storage."""

    def root(self, sink_id: str) -> str:
        """The directory of the sink's data files, for the id in the control record."""

    def require_supported(self) -> None:
        """Refuse a table that has what this sink does not understand.

        Raises:
            ConfigurationError: see above. The message says what it is, and what to do.
        """

    def row_format(self, schema: pa.Schema) -> RowFormat:
        """Say how rows with these columns become rows of the table.

        Raises:
            SchemaError: they cannot.
        """

    def data_files(self) -> DataFiles[Any]:
        """How data files are made."""

    def handle(self, **common: Any) -> HandleT:
        """The handle of files that were made for this view, with these attributes of :class:`LakeHandle`."""

    def is_current(self, handle: HandleT) -> bool:
        """Whether the table's definition is still the one with which the files of a handle were made."""
