"""What a checkpoint is bound to, and which differences count as a change (rule 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from twopc.decision_log import ABSENT, NO_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = 1


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The decision log and the sinks to which a checkpoint is bound.

    Attributes:
        log: the name of the deciding log.
        log_identity: an id that changes when the log is recreated.
        sinks: for each sink name, the facts that must not change.
    """

    format: int
    log: str
    log_identity: str
    sinks: dict[str, dict[str, str]]


def changed_facts(bound: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """List the facts that show that a sink no longer points to the store to which the checkpoint is bound.

    A new version of a sink may add or remove facts. Only a fact that both versions record can show a change. If they share
    no fact, the name now belongs to another kind of sink, and every fact counts as changed.
    """
    common = bound.keys() & current.keys()
    if bound and not common:
        return sorted(bound.keys() | current.keys())
    return sorted(name for name in common if not is_same(bound[name], current[name]))


def is_same_log(bound: Bound, current: Bound) -> bool:
    """Whether both name the same deciding log, and nobody has deleted and recreated that log in between."""
    return bound.log == current.log and is_same(bound.log_identity, current.log_identity)


def is_same(bound: str, current: str) -> bool:
    """Whether an id may still stand for the same thing.

    An upgraded broker may give an id to a ledger that had none (``NO_ID``), but not to a deleted ledger (``ABSENT``).
    """
    return bound == current or (NO_ID in {bound, current} and ABSENT not in {bound, current})


def with_known_ids(current: Bound, bound: Bound) -> Bound:
    """Keep the ids that the binding knows, even if a broker that has not been upgraded yet does not know them."""
    sinks = {
        name: {fact: _known(bound.sinks.get(name, {}).get(fact), value) for fact, value in facts.items()}
        for name, facts in current.sinks.items()
    }
    return replace(current, log_identity=_known(bound.log_identity, current.log_identity), sinks=sinks)


def _known(bound: str | None, current: str) -> str:
    return bound if bound is not None and current == NO_ID else current
