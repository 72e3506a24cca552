"""The state of a sink's store, read for an operator. Reading this state does not fence any driver or change any data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.attempt import Evidence
    from twopc.control import Control


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The state of a sink's store.

    Attributes:
        record: the sink's control record; empty if the store has none.
        bound: the facts that :meth:`SinkCommitter.binding` would return.
        is_ahead: whether the store contains a decision that is missing from the log; see
            :meth:`SinkCommitter.has_newer_decision`.
        is_behind: whether the store has lost decisions; see :meth:`SinkCommitter.lacks_decisions`.
        evidence: the outcome of each transaction in the newest decision. ABORTED means that the rows are lost, even if no
            driver has proven the loss yet.
        leftovers: the names of staged transactions that are not part of the newest decision.
        rows: for each decision's version, the number of rows in the store's history; empty if the store keeps no history.
        complete: the decisions whose commits are all in the history. For any other decision, old commits may have been
            cleaned up.
        facts: more facts about the store, to show to an operator.
        rolled_back: why the table no longer shows the newest published batch; None if there is no evidence of a
            rollback.
    """

    record: Control
    bound: Mapping[str, str]
    is_ahead: bool = False
    is_behind: bool = False
    evidence: Mapping[Any, Evidence] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()
    rows: Mapping[int, int] = field(default_factory=dict)
    complete: frozenset[int] = frozenset()
    facts: Mapping[str, str] = field(default_factory=dict)
    rolled_back: str | None = None
