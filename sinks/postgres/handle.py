"""Define the handle that the driver needs to publish a task's rows."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.fenced_committer import Prepared


@dataclass(frozen=True)
class PostgresHandle(Prepared):
    """Identifies a slice: a table of a task's rows, plus an entry in the sink's own tables; see :class:`Prepared`.

    Attributes:
        columns: the table's columns that the rows contain.
        filled: the columns that the stage has filled with their defaults.
        table: a fingerprint of the table's definition when the slice was staged.
        vote: with ``vote="prepared"``, the name of the server's prepared transaction that publishes the slice. All tasks in an
            attempt share one vote.
        numbers: the catalog's numbers of ``columns`` when the slice was staged. A column keeps its number when it is renamed,
            and no other column ever receives that number. The field is empty in a handle from an older version of the toolkit.
    """

    columns: tuple[str, ...]
    filled: tuple[str, ...]
    table: str
    vote: str = ""
    numbers: tuple[int, ...] = ()
