"""What the handle of a task says of each file: what an ``add`` action of the table's log has."""

from __future__ import annotations

import msgspec
from deltalake.transaction import AddAction


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One file.

    Attributes:
        path: relative to the table.
        size: in bytes.
        rows: how many rows it has.
        partition: the values of its partition columns, as Delta writes them; None is null.
        modified_ms: when it was written.
        stats: Delta's statistics, as JSON.
    """

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    modified_ms: int
    stats: str

    def action(self) -> AddAction:
        """The file as the table's log has it."""
        return AddAction(self.path, self.size, self.partition, self.modified_ms, data_change=True, stats=self.stats)
