"""Define the newest decision's outcome. The commit that adds the rows also stores the outcome, which proves the commit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from twopc.attempt import Evidence
from twopc.sinks.lake.layout import directory_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.sinks.lake.handle import HandleT, LakeHandle


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of the newest decision.

    Attributes:
        version: the decision's version.
        epoch: the driver epoch in the files' paths. A repair may add files from several drivers. Then ``epoch`` is the
            last driver's epoch.
        batch: the batch id.
        attempts: the number of settled transactions for each attempt at the batch. A repair may cover several attempts.
        lost: the settled transactions that will never be in the table.
        lists: the directories that contain tasks' lists of files (see :class:`LakeHandle`). A driver keeps these files
            until a later decision is in the table, because a machine crash may lose the newest commit.
        former_lists: the previous decision's ``lists``. A driver that died may not have deleted these files.
    """

    version: int = 0
    epoch: int = 0
    batch: int = -1
    attempts: dict[str, int] = {}
    lost: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    former_lists: tuple[str, ...] = ()


def settle(published: Published, found: Mapping[HandleT, object | None]) -> Published:
    """Compute the outcome after a commit settles these transactions. ``found`` maps each lost transaction to None."""
    lists = {directory_of(handle.entries_file) for handle in found if handle.entries_file}
    return replace(
        published,
        attempts={**published.attempts, **Counter(handle.attempt for handle in found)},
        lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),
        lists=tuple(sorted({*published.lists, *lists})),
    )


def evidence_of(published: Published, handles: Sequence[HandleT], version: int) -> dict[HandleT, Evidence]:
    """Derive the evidence for transactions in the decision with this version.

    If the outcome is for another version, return UNKNOWN.
    """
    if published.version != version:
        return dict.fromkeys(handles, Evidence.UNKNOWN)
    asked = Counter(handle.attempt for handle in handles)
    return {handle: _evidence(published, handle, asked[handle.attempt]) for handle in handles}


def _evidence(published: Published, handle: LakeHandle, asked: int) -> Evidence:
    if asked > published.attempts.get(handle.attempt, 0):
        return Evidence.UNKNOWN
    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED
