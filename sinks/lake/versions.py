"""Give each attempt a version without writing to the table. The high bits of a version are the driver's epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twopc.versions import decided_before, proven_before, version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.control import Control
    from twopc.sinks.lake.published import Published

#: A driver's versions are higher than all earlier drivers' versions, so that no two drivers reserve the same version.
_VERSIONS_OF_A_DRIVER: Final = 32


def next_version(above: int, driver_epoch: int) -> int:
    """Return a version that is greater than ``above`` and that no other driver ever uses."""
    return max(above + 1, driver_epoch << _VERSIONS_OF_A_DRIVER)


def is_older(record: Control, published: Published, known: Mapping[str, Any]) -> bool:
    """Return whether a table lacks commits that came before the newest decision in the log, including repairs."""
    if record.proven < proven_before(known):
        return True
    newest = max(record.decided, published.version)
    return newest < decided_before(known) or record.driver_epoch < version_of(known) >> _VERSIONS_OF_A_DRIVER
