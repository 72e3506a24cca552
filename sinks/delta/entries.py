"""Define a file's entry in a task's handle. The entry contains the fields of an ``add`` action in the table's log."""

from __future__ import annotations

import msgspec
from deltalake.transaction import AddAction


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Describes one file.

    Attributes:
        path: the path relative to the table's directory.
        size: the size in bytes.
        rows: the number of rows.
        partition: the values of the partition columns in Delta's text form; None stands for null.
        modified_ms: the Unix time at which the file was written, in milliseconds.
        stats: Delta's statistics, as JSON.
    """

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    modified_ms: int
    stats: str

    def action(self) -> AddAction:
        """Create the ``add`` action for the table's log."""
        return AddAction(self.path, self.size, self.partition, self.modified_ms, data_change=True, stats=self.stats)
