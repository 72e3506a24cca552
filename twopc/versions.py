"""Handle the versions in a decision record: the attempt's version, and the newest decision's version when the attempt began.

The versions in a control record never decrease. The two versions in a decision therefore show whether the control
record is ahead of the log, or behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.control import Control

#: Keys in the decision record.
_VERSION: Final = "base"
_AFTER: Final = "after"
#: Stands for a decision that does not exist.
NO_ATTEMPT: Final[Mapping[str, Any]] = {_VERSION: 0, _AFTER: 0}


def scan_start_of(record: Control) -> dict[str, Any]:
    """Return the versions to store in the decision record for the attempt that has just reserved this record's version."""
    return {_VERSION: record.version, _AFTER: record.decided}


def is_ahead(record: Control, scan_start: Mapping[str, Any]) -> bool:
    """Return whether a record has a decision newer than the attempt for which ``begin_attempt`` returned ``scan_start``."""
    known = scan_start or NO_ATTEMPT
    # A higher version is not required: if two copies have both decided, the one that began first may commit first.
    return record.decided != version_of(known) and record.decided > decided_before(known)


def is_behind(record: Control, scan_start: Mapping[str, Any]) -> bool:
    """Return whether a record lacks decisions from before the attempt whose ``begin_attempt`` returned ``scan_start``."""
    known = scan_start or NO_ATTEMPT
    return record.version < version_of(known) and record.decided < int(known.get(_AFTER, 0))


def version_of(scan_start: Mapping[str, Any]) -> int:
    """Return the version of the attempt for which :meth:`ControlCommitter.begin_attempt` returned ``scan_start``."""
    return int(scan_start[_VERSION])


def decided_before(scan_start: Mapping[str, Any]) -> int:
    """Return the version of the newest decision at the time when the attempt began."""
    return int(scan_start.get(_AFTER, version_of(scan_start)))
