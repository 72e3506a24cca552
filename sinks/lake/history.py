"""Define what a table's own history shows about a sink's decisions. Only operators need this history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.observation import Observation


class History(NamedTuple):
    """What a table's history shows about the sink's decisions.

    Attributes:
        kind: what the format calls one entry of the history, such as "version".
        entry: the number of the entry that added the newest published batch.
        removed: why the table no longer shows this entry; None if no removal is known.
        rows: for each decision, the number of rows that the history records; the key is the decision's version.
        complete: the decisions whose entries are all in the history.
    """

    kind: str
    entry: int
    removed: str | None
    rows: Mapping[int, int]
    complete: frozenset[int]

    def added_to(self, found: Observation, table: str, batch: int) -> Observation:
        """Add this history to an observation. ``batch`` is the newest published batch."""
        rolled_back = f"{self.kind} {self.entry} added batch {batch} to {table}, but {self.removed}"
        return replace(
            found,
            rows=self.rows,
            complete=self.complete,
            facts={self.kind: f"{self.entry} added batch {batch}"},
            rolled_back=rolled_back if self.removed else None,
        )
