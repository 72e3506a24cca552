"""Drop the stages of slices that are published or rolled back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.sinks.postgres.database import Database
    from twopc.sinks.postgres.statements import Statements

logger = logging.getLogger(__name__)

#: The timeout is short because no batch waits for the removal of a stage.
_DROP_LOCK_TIMEOUT_MS: Final = 1_000
#: How many stages one transaction drops. Each stage needs a lock, and ``max_locks_per_transaction`` is 64 by default.
_DROPPED_AT_ONCE: Final = 50


class Stages:
    """Drops the stages that no batch needs. A stage that only another role may drop stays, and a warning says so once."""

    def __init__(self, database: Database, statements: Statements) -> None:
        self._database = database
        self._statements = statements
        self._has_warned = False

    def drop(self) -> None:
        """Drop the stages.

        Raises:
            psycopg.Error: a stage cannot be dropped now, for example because a backup is still reading it.
        """
        while self._drop_some():
            pass

    def _drop_some(self) -> bool:
        """Drop some stages. Return whether more stages may exist."""
        with self._database.transaction() as connection:
            find = self._statements.find_slices_with_marker(limit=_DROPPED_AT_ONCE)
            found = connection.execute(find).fetchall()
            # If one stage could not be dropped, the transaction would roll back, and all other stages would stay, too.
            names = [name for name, owner in found if owner is None]
            for statement in self._statements.drop_stages(names, lock_timeout_ms=_DROP_LOCK_TIMEOUT_MS):
                connection.execute(statement)
        self._warn_of_others([row for row in found if row[1] is not None])
        return len(names) == _DROPPED_AT_ONCE

    def _warn_of_others(self, others: Sequence[Any]) -> None:
        if not others or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "sink %r: role %s owns stages that the sink's role cannot drop, such as %s. They take up space, but no data is at "
            "risk. Run ALTER TABLE … OWNER TO the sink's role for each of these stages, and the sink will drop them",
            self._statements.sink,
            others[0][1],
            self._statements.stage(others[0][0]).as_string(),
        )
