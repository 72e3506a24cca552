"""Drop the stages of slices that are published or rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twopc.sinks.postgres.database import Database
    from twopc.sinks.postgres.statements import Statements

#: The timeout is short because no batch waits for the removal of a stage.
_DROP_LOCK_TIMEOUT_MS: Final = 1_000
#: How many stages one transaction drops. Each stage needs a lock, and ``max_locks_per_transaction`` is 64 by default.
_DROPPED_AT_ONCE: Final = 50


def drop_stages(database: Database, statements: Statements) -> None:
    """Drop the stages that no batch needs.

    Raises:
        psycopg.Error: a stage cannot be dropped now. For example, a backup is still reading the stage.
    """
    while _drop_some(database, statements):
        pass


def _drop_some(database: Database, statements: Statements) -> bool:
    """Drop some stages. Return whether more stages may exist."""
    with database.transaction() as connection:
        find = statements.find_slices_with_marker(limit=_DROPPED_AT_ONCE)
        names = [name for (name,) in connection.execute(find)]
        for statement in statements.drop_stages(names, lock_timeout_ms=_DROP_LOCK_TIMEOUT_MS):
            connection.execute(statement)
    return len(names) == _DROPPED_AT_ONCE
