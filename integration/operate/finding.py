"""A finding and the action it calls for. Commands show findings, and the runbook has an entry for each."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

#: The runbook. A test checks that each anchor exists.
RUNBOOK: Final = "docs/operations.md"


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
