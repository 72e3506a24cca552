"""Which batch this is: the same batch id is not the same batch (rule 10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.log_view import LogView


@dataclass(frozen=True)
class Checkpoint:
    """One batch as the engine presents it.

    Attributes:
        lineage: the query's id, kept in its checkpoint.
        batch: the batch id.
        offsets: its source offsets, one canonical string a source.
        offsets_of: reads the source offsets of another batch of the same checkpoint; None where it has none.
    """

    lineage: str
    batch: int
    offsets: tuple[str, ...]
    offsets_of: Callable[[int], tuple[str, ...] | None]


class Position(Enum):
    """How a batch relates to the last decision."""

    SAME = "same"  #: the last decided batch again, with the same source offsets
    NEXT = "next"  #: the one after it, in the same history
    REWOUND = "rewound"  #: before it: an older checkpoint was restored
    COPIED = "copied"  #: the right number, but of another history
    GAP = "gap"  #: beyond the next one
    FIRST = "first"  #: batch 0 of a new lineage under an unused name
    NEW_LINEAGE = "new lineage"  #: a new lineage under a name that another one has used
    UNADOPTED = "unadopted"  #: a checkpoint that lived before the sink
    ENDED = "ended lineage"  #: a lineage that was ended by another one


@dataclass(frozen=True)
class Permits:
    """What the user has explicitly allowed, by naming the lineage concerned: a setting left on guards still.

    Attributes:
        adopt_lineage: the lineage (query id) of a checkpoint that lived before the sink.
        end_lineage: the lineage that a new one may end.
    """

    adopt_lineage: str | None = None
    end_lineage: str | None = None


def locate(view: LogView, checkpoint: Checkpoint, permits: Permits) -> Position:
    """Where ``checkpoint`` stands against the log."""
    if checkpoint.lineage in view.ended:
        return Position.ENDED
    if view.begin is None or view.begin.lineage != checkpoint.lineage:
        return _locate_new_lineage(view, checkpoint, permits)
    highest = view.highest_batch
    if highest is None:
        raise AssertionError("an open lineage has a highest batch")
    if checkpoint.batch == highest:
        return Position.SAME if checkpoint.offsets == view.highest_offsets else Position.COPIED
    if checkpoint.batch < highest:
        return Position.REWOUND
    if checkpoint.batch > highest + 1:
        return Position.GAP
    prior = (checkpoint.offsets_of(highest) or ()) if highest >= 0 else ()
    return Position.NEXT if prior == view.highest_offsets else Position.COPIED


def _locate_new_lineage(view: LogView, checkpoint: Checkpoint, permits: Permits) -> Position:
    if view.begin is not None and permits.end_lineage != view.begin.lineage:
        return Position.NEW_LINEAGE
    if checkpoint.batch > 0 and permits.adopt_lineage != checkpoint.lineage:
        return Position.UNADOPTED
    return Position.FIRST
