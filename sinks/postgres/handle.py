"""The handle that the driver needs to publish a task's rows."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.fenced_committer import Prepared


@dataclass(frozen=True)
class PostgresHandle(Prepared):
    """See :class:`Prepared`: a slice, which is a table with the task's rows and an entry in the sink's own tables.

    Attributes:
        columns: the table's columns that the rows have.
        filled: the columns whose default the stage has filled in.
        table: a fingerprint of the table's definition when the slice was staged.
        vote: with ``vote="prepared"``, the name of the server's prepared transaction that publishes the slice. All tasks of
            an attempt have the same vote.
    """

    columns: tuple[str, ...]
    filled: tuple[str, ...]
    table: str
    vote: str = ""
