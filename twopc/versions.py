"""Handle the versions in a decision record: the attempt's version, and the newest decisions' versions when the attempt began.

The versions in a control record never decrease. The versions in a decision therefore show whether the control record is ahead
of the log, or behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twopc.control import decided_by_others

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.control import Control

#: Keys in the decision record.
_VERSION: Final = "base"
_AFTER: Final = "after"
_PROVEN: Final = "proven"
#: Stands for a decision that does not exist.
NO_ATTEMPT: Final[Mapping[str, Any]] = {_VERSION: 0, _AFTER: 0}


def scan_start_of(record: Control) -> dict[str, Any]:
    """Return the versions for the decision record of the attempt that has just reserved the version in ``record``."""
    return {_VERSION: record.version, _AFTER: record.decided, _PROVEN: record.proven}


def is_ahead(record: Control, scan_start: Mapping[str, Any]) -> bool:
    """Return whether the record contains a decision of its owner that is newer than the attempt with this ``scan_start``."""
    known = scan_start or NO_ATTEMPT
    if record.decided == record.completed:
        return False
    # The record's version may even be lower. If two copies have decided, the copy that began first may commit first.
    return record.decided != version_of(known) and record.decided > decided_before(known)


def is_behind(record: Control, scan_start: Mapping[str, Any]) -> bool:
    """Return whether the store lacks decisions made before the attempt with this ``scan_start``, or rows of such a decision.

    A store may have returned to the middle of a commit, or to the time before a repair. Its record then contains the decision,
    but not that the decision was proven complete. No later start would examine that decision.
    """
    known = scan_start or NO_ATTEMPT
    if record.proven < proven_before(known):
        return True
    return record.version < version_of(known) and record.decided < int(known.get(_AFTER, 0))


def is_replaced(record: Control, query_id: str, scan_start: Mapping[str, Any]) -> bool:
    """Return whether another query has made a decision after this query's attempt with this ``scan_start``."""
    return decided_by_others(record, query_id) > version_of(scan_start)


def order_of(scan_start: Mapping[str, Any]) -> int:
    """For a sink that has a control record, return a number that grows with every attempt. It is 0 in every other sink."""
    return int(scan_start.get(_VERSION, 0))


def version_of(scan_start: Mapping[str, Any]) -> int:
    """Return the version of the attempt with this ``scan_start`` (see :meth:`ControlCommitter.begin_attempt`)."""
    return int(scan_start[_VERSION])


def decided_before(scan_start: Mapping[str, Any]) -> int:
    """Return the version of the newest decision at the time when the attempt began."""
    return int(scan_start.get(_AFTER, version_of(scan_start)))


def proven_before(scan_start: Mapping[str, Any]) -> int:
    """Return the version of the newest decision that was proven complete when the attempt began."""
    return int(scan_start.get(_PROVEN, 0))
