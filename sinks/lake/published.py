"""The outcome of the newest decision, which the sink keeps in the table: the evidence of a commit is as old as the commit."""

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
        version: the decision's.
        epoch: the driver epoch in the names of its files. A repair has those of several drivers, and this is the last one's.
        batch: the batch.
        attempts: how many transactions of each attempt at the batch are settled. There are several after a repair.
        lost: the settled transactions that are not in the table and never will be.
    """

    version: int = 0
    epoch: int = 0
    batch: int = -1
    attempts: dict[str, int] = {}
    lost: tuple[str, ...] = ()


def settle(published: Published, found: Mapping[HandleT, object | None]) -> Published:
    """The outcome after a commit that settles these transactions; None for those that are lost."""
    return replace(
        published,
        attempts={**published.attempts, **Counter(handle.attempt for handle in found)},
        lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),
    )


def evidence_of(published: Published, handles: Sequence[HandleT]) -> dict[HandleT, Evidence]:
    """What the outcome proves of these transactions of its decision."""
    asked = Counter(handle.attempt for handle in handles)
    return {handle: _evidence(published, handle, asked[handle.attempt]) for handle in handles}


def _evidence(published: Published, handle: LakeHandle, asked: int) -> Evidence:
    if asked > published.attempts.get(handle.attempt, 0):
        return Evidence.UNKNOWN
    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED
