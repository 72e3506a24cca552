"""Compare the state of a sink's store with the decisions in the query's log. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twopc.attempt import Evidence
from twopc.bound import changed_facts
from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.observation import Observation


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """The state of a sink's store, with the decisions from the query's log.

    Attributes:
        kind: the sink's class.
        bound: the facts about the sink that the checkpoint's binding contains; None if the binding does not name the sink.
        problem: why the store could not be observed; None if the store was observed.
        answers: whether the store responded.
        is_known: whether the decisions could be read.
        unread: why the decisions could not be read, if the reason is known.
        batch: the newest decided batch; None if no batch is decided.
        abandoned: the newest batch, if it was decided and then abandoned.
        first_batch: the first batch that the query could decide.
        decided: maps the version of each retained decision to its batch and its number of rows.
        seen: the observed state; None if the sink cannot be observed.
        is_replaced: whether another query has made a decision after the newest decision of the checkpoint's query. If so, the
            checkpoint's query must not run again.
    """

    sink: str
    kind: str
    bound: Mapping[str, str] | None = None
    problem: str | None = None
    answers: bool = True
    is_known: bool = True
    unread: str | None = None
    batch: int | None = None
    abandoned: int | None = None
    first_batch: int = 0
    decided: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    seen: Observation | None = None
    is_replaced: bool = False

    @property
    def changed(self) -> list[str]:
        """The facts that differ between the store and the checkpoint's binding.

        If any fact differs, the checkpoint is bound to another store.
        """
        if self.seen is None or self.bound is None:
            return []
        return changed_facts(self.bound, self.seen.bound)

    @property
    def is_ahead(self) -> bool:
        """Whether the checkpoint's own store contains a decision that was missing from the log. The log was read first."""
        return self.seen is not None and self.seen.is_ahead and not self.changed

    @property
    def lost(self) -> list[str]:
        """The decided transactions whose rows are lost."""
        return self._with(Evidence.ABORTED)

    @property
    def waiting(self) -> list[str]:
        """The decided transactions that are not published yet."""
        return self._with(Evidence.UNKNOWN)

    @property
    def differing(self) -> list[str]:
        """The published batches for which the store's history and the decision give different numbers of rows.

        A repaired batch has several commits. So a missing row counts as a difference only if the history contains all
        of the batch's commits.
        """
        stored = {} if self.seen is None else self.seen.rows
        complete = frozenset[int]() if self.seen is None else self.seen.complete
        return [
            f"batch {batch}: {counted(rows, 'row')} decided, {stored[version]:,} in the table's history"
            for version, (batch, rows) in self.decided.items()
            if version in stored
            and (stored[version] > rows or (stored[version] < rows and version in complete))
            and not (batch == self.batch and (self.lost or self.waiting))
        ]

    @property
    def published(self) -> int | None:
        """The newest published batch; None if no batch is published, or if it is unknown which batch is the newest.

        A batch is decided only after its predecessor is published.
        """
        seen = self.seen
        if self.batch is None or seen is None or not seen.record.id or self.changed:
            return None
        if seen.is_ahead or seen.is_behind:
            return None
        newest = self.batch - 1 if self.lost or self.waiting else self.batch
        return newest if newest >= self.first_batch else None

    def facts(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        seen = self.seen
        return {
            "sink": self.sink,
            "kind": self.kind,
            "problem": self.problem,
            "answers": self.answers,
            "query_id": None if seen is None else seen.record.query_id or None,
            "driver_epoch": None if seen is None else seen.record.driver_epoch,
            "last_decided": self.abandoned if self.batch is None else self.batch,
            "last_published": self.published,
            "not_published": self.waiting,
            "lost": self.lost,
            "differing": self.differing,
            "leftovers": None if seen is None or not self.is_known else list(seen.leftovers),
            "store": {} if seen is None else dict(seen.facts),
        }

    def _with(self, proof: Evidence) -> list[str]:
        found = {} if self.seen is None else self.seen.evidence
        return [str(handle.transaction) for handle, evidence in found.items() if evidence is proof]
