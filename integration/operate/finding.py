"""A finding and the action it calls for. Commands show findings, and the runbook has an entry for each."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

#: The runbook. A test checks that each anchor exists.
RUNBOOK: Final = "docs/operations.md"
#: The runbook entry for another program's open transaction. Such a transaction delays readers, but leaves the query no work.
FOREIGN: Final = "a-foreign-transaction-holds-readers-back"


class Urgency(Enum):
    """Whether the user must act."""

    NONE = "ok"
    WATCH = "watch"  #: the state resolves on its own; act only if it persists
    ACT = "act"


class Advice(NamedTuple):
    """A finding and the action to take."""

    urgency: Urgency
    what: str  #: the finding, and its cause
    action: str  #: what to do now
    anchor: str  #: the anchor of the runbook entry

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {"urgency": self.urgency.value, "what": self.what, "action": self.action, "runbook": self.link}

    @property
    def link(self) -> str:
        """The link to the runbook entry."""
        return f"{RUNBOOK}#{self.anchor}"


def of_another_query(mine: str, what: str, owner: str, *, is_ended: bool) -> Advice:
    """Say that the checkpoint and the sink belong to different queries.

    Args:
        mine: the checkpoint's query.
        what: the place where the owner is recorded, which is the sink or its ledger.
        owner: the query that owns the sink.
        is_ended: whether ``owner`` has replaced the checkpoint's query, so this query must not run again.
    """
    anchor = "the-start-is-refused"
    if is_ended:
        return Advice(
            Urgency.ACT,
            f"the checkpoint belongs to query {mine}, which ended when another query replaced it; {what} belongs to query "
            f"{owner}",
            f"Use the checkpoint of query {owner}. The ended query cannot run again.",
            anchor,
        )
    return Advice(
        Urgency.ACT,
        f"the checkpoint belongs to query {mine}, but {what} belongs to query {owner}",
        f"Use the checkpoint of query {owner}. If that query has ended permanently, start the checkpoint's query with "
        f"override=EndQuery({owner!r}). If this checkpoint is new, first check its beginning: docs/operations.md#new-checkpoint.",
        anchor,
    )
