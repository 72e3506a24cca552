"""Define the handle of a slice, and a slice's states after the decision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from twopc.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


@dataclass(frozen=True, kw_only=True)
class StagedHandle:
    """Identifies a prepared slice, which one task attempt has staged. The slice never changes.

    Attributes:
        uuid: the slice's permanent name.
        driver_epoch: the sink's driver epoch when the slice was written.
        rows: the number of rows that the task wrote.
        checksum: the checksum of all chunks in the slice.
    """

    uuid: str
    driver_epoch: int
    rows: int
    checksum: str

    @property
    def entry(self) -> str:
        """The slice's id in the sink's list of slices."""
        return entry_of(self.driver_epoch, self.uuid)

    @property
    def transaction(self) -> str:
        """See :class:`Handle`."""
        return f"slice {self.entry} ({counted(self.rows, 'row')})"


StagedHandleT = TypeVar("StagedHandleT", bound=StagedHandle)


def entry_of(driver_epoch: int, uuid: str) -> str:
    """Return a slice's id in the sink's list of slices."""
    return f"{driver_epoch}:{uuid}"


def epoch_of(entry: str) -> int:
    """Extract the driver epoch in which a slice was written."""
    return int(entry.partition(":")[0])


def halve(rows: range, pack: Callable[[range], bytes], *, max_bytes: int) -> Iterator[tuple[range, bytes]]:
    """Split rows until each part needs at most ``max_bytes`` in the store. A row that needs more becomes a separate part."""
    data, middle = pack(rows), len(rows) // 2
    if len(data) <= max_bytes or not middle:
        yield rows, data
        return
    yield from halve(rows[:middle], pack, max_bytes=max_bytes)
    yield from halve(rows[middle:], pack, max_bytes=max_bytes)


class SliceState(Enum):
    """Says how much of a decided slice is applied, and whether the rest still exists."""

    PREPARED = "PREPARED"  #: no chunk is applied, and every chunk exists
    APPLYING = "APPLYING"  #: some chunks may be applied, and the others exist
    COMMITTED = "COMMITTED"  #: every chunk is applied
    LOST = "LOST"  #: no chunk is applied, and either chunks are missing, or a tombstone forbids applying them
    TORN = "TORN"  #: some chunks may be applied, and others are missing
    STALE = "STALE"  #: a newer decision was applied, and this decision's markers are missing
    UNANSWERED = "UNANSWERED"  #: the store did not respond


#: The driver applies only complete slices. A slice that has lost a chunk may be proven lost and written again.
APPLICABLE: Final = frozenset({SliceState.PREPARED, SliceState.APPLYING})

#: The rows of these slices may still have to be applied, but cannot be applied now. If the order of slices matters,
#: later slices must wait. A slice that is lost or torn holds nothing back. If a lost slice is written again, its rows
#: come last. A torn slice is never applied further. If a backup that contains its remaining chunks is restored, the
#: later slices are applied again, too.
WAITING: Final = frozenset({SliceState.UNANSWERED, SliceState.STALE})


def combine(places: Collection[SliceState]) -> SliceState:
    """Combine a slice's states from several places that apply the slice separately (for example, slots in a Redis cluster)."""
    found = set(places)
    if len(found) == 1:
        return found.pop()
    for decisive in (SliceState.STALE, SliceState.TORN, SliceState.UNANSWERED):
        if decisive in found:
            return decisive
    if SliceState.LOST in found:
        return SliceState.LOST if found == {SliceState.LOST, SliceState.PREPARED} else SliceState.TORN
    return SliceState.APPLYING
