"""Define the outcome of the newest decision. The commit that adds the rows also stores it, so it proves the commit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from twopc.attempt import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.sinks.lake.handle import HandleT, LakeHandle


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """See above.

    Attributes:
        version: the decision's version.
        epoch: the driver epoch in the paths of its files. A repair has files of several drivers; then this is the last epoch.
        batch: the batch's id.
        attempts: how many transactions of each attempt at the batch are settled. A repair has several attempts.
        lost: the settled transactions that are not in the table and never will be.
    """

    version: int = 0
    epoch: int = 0
    batch: int = -1
    attempts: dict[str, int] = {}
    lost: tuple[str, ...] = ()


def settle(published: Published, found: Mapping[HandleT, object | None]) -> Published:
    """Compute the outcome after a commit that settles these transactions. ``found`` has None for each lost transaction."""
    return replace(
        published,
        attempts={**published.attempts, **Counter(handle.attempt for handle in found)},
        lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),
    )


def evidence_of(published: Published, handles: Sequence[HandleT]) -> dict[HandleT, Evidence]:
    """Tell what the outcome proves about these transactions of its decision."""
    asked = Counter(handle.attempt for handle in handles)
    return {handle: _evidence(published, handle, asked[handle.attempt]) for handle in handles}


def _evidence(published: Published, handle: LakeHandle, asked: int) -> Evidence:
    if asked > published.attempts.get(handle.attempt, 0):
        return Evidence.UNKNOWN
    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED
