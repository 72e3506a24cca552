"""Define the handle that the driver needs to publish a task's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.fenced_committer import Prepared
from twopc.sinks.postgres.publishing import Mode, Publishing

if TYPE_CHECKING:
    from twopc.sinks.postgres.target import Table


@dataclass(frozen=True)
class PostgresHandle(Prepared):
    """Identifies a slice: a table of a task's rows, plus an entry in the sink's own tables; see :class:`Prepared`.

    Attributes:
        columns: the table's columns that the rows contain.
        filled: the columns that the stage has filled with their defaults.
        table: a fingerprint of the table's definition when the slice was staged.
        vote: with ``vote="prepared"``, the name of the server's prepared transaction that publishes the slice. All tasks in an
            attempt share one vote.
        numbers: the numbers (``attnum``) that ``columns`` had in the catalog when the slice was staged. A column keeps its
            number when it is renamed, and PostgreSQL never gives that number to another column.
        mode, key, order_by: how to publish the rows; see :class:`Publishing`. A restart may change the sink's settings before
            a decided slice is published.
    """

    columns: tuple[str, ...]
    filled: tuple[str, ...]
    table: str
    vote: str
    numbers: tuple[int, ...]
    mode: Mode
    key: tuple[str, ...]
    order_by: tuple[str, ...]

    def publishing(self, table: Table) -> Publishing:
        """Describe how to publish the rows. The table may reject them if it was altered after the decision."""
        return Publishing(table, self.mode, self.columns, self.key, self.order_by)
