"""A hand-over identifies a batch that one sink began and another sink must finish.

The hand-over also says which part of the batch is already in the output. A streaming query that changes its sink keeps its
checkpoint, so it loses no input. However, the last batch may be unfinished: ``offsets/N`` exists and ``commits/N`` does not.
Spark passes batch N to the new sink again, and some of the batch's rows may already be in the output. A sink without
transactions does not record which rows it has written.

Therefore, ``twopc migrate cutover`` writes the file ``<checkpoint>/twopc/handover-<n>.json`` after the old query has stopped.
The file contains the batch number, the batch's source offsets, and *bounds*. All of the batch's rows in the output lie within
these bounds. :class:`twopc.integration.migrate.TakeOver` comes before the new sink. ``TakeOver`` compares batch N with the
records within the bounds, as multisets, and passes the remaining rows to the new sink. Every other batch passes unchanged.

The protocol itself stays the same. The bounds are fixed before the new sink writes its first row. So no row from
the new sink ever lies within the bounds, and every replay of batch N passes the same rows to the new sink.
``exactly_once`` simply sees a batch N with fewer rows.

The bounds come from ``offsets/N``, where Spark also records when it planned the batch. At that time, every row of batch N - 1
had been acknowledged, and no row of batch N had been sent. ``exact`` is the offset of the first record from that time or later.
The clocks of the driver and the executors may differ. Therefore, ``start`` is found in the same way, but for a time that is
``clock_skew_ms`` earlier. ``start`` is at most ``exact``. ``end`` is the partition's end offset at the time of the hand-over.

In real-time mode, with a continuous trigger and with asynchronous progress tracking, Spark records a batch only after its rows,
or not at all. So even if every recorded batch is finished, the output may contain rows of a later batch. These rows are newer
than ``commits/N``. ``twopc migrate cutover`` refuses such an output (``twopc.integration.migrate.unrecorded``).

A rollback uses the same file with a different ``kind``. For example, ``kind`` is ``whole`` if the transactional sink has made
all of the batch visible.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from twopc.errors import ConfigurationError
from twopc.integration.spark.handed_over import FORMAT, REMEDY, file_of, newest_number
from twopc.offsets import is_same
from twopc.sealed import seal, unseal_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.files import Files


class Kind(Enum):
    """The part of the batch that is in the output."""

    NOTHING = "nothing"  #: the batch is finished or has not begun, so every row of the next batch must be written
    REST = "rest"  #: the rows within the bounds
    WHOLE = "whole"  #: every row


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a partition that may contain the batch's rows. ``end`` is not included.

    ``follows_deletion`` says that the broker had deleted records of the partition by the time of the hand-over, and had kept none
    from before ``start``. So it may have deleted rows of the batch.
    """

    start: int
    exact: int
    end: int
    follows_deletion: bool = False

    def since(self, first: int) -> Bounds:
        """Return the part of the bounds that begins no earlier than the offset ``first``."""
        start, exact = (min(max(offset, first), self.end) for offset in (self.start, self.exact))
        return msgspec.structs.replace(self, start=start, exact=exact)


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """A hand-over; see the module's docstring.

    Attributes:
        query_id: the query id in the checkpoint.
        batch_id: the batch to hand over; -1 if no batch was begun.
        offsets: the batch's source offsets, as the protocol compares them.
        kind: which part of the batch is in the output.
        topics: the bounds of the rows, by topic and partition.
        key: the expression that identifies a record, as in ``twopc verify --key``; None: the record's full content.
        planned_ms: when Spark planned the batch, in ms since 1970 UTC.
        clock_skew_ms: how far a producer's clock may be behind the driver's clock, in ms.
        other_writers: whether other programs also write to the topics, before and after the hand-over.
        is_back: whether the checkpoint was returned to the old sink. Nothing records which rows the old sink writes
            afterward.
    """

    format: int = FORMAT
    query_id: str
    batch_id: int
    offsets: tuple[str, ...]
    kind: Kind
    topics: dict[str, dict[int, Bounds]] = {}
    key: str | None = None
    planned_ms: int = 0
    clock_skew_ms: int = 0
    other_writers: bool = False
    is_back: bool = False

    @property
    def first_batch(self) -> int:
        """The first batch that the next sink writes."""
        return self.batch_id + (self.kind is not Kind.REST)

    def is_about(self, query_id: str, batch_id: int) -> bool:
        """Whether the hand-over to the new sink says that the old sink has written only a part of this batch."""
        return (self.query_id, self.batch_id, self.kind, self.is_back) == (query_id, batch_id, Kind.REST, False)

    def require_plan(self, offsets: Sequence[str]) -> None:
        """Check that the batch still has these source offsets, so that Spark has not planned the batch again.

        The old sink has written rows of the first plan. Some of them belong to later batches of the new plan. The others are
        older than the new plan, so the bounds of a new hand-over would leave them out. The new query would write both again.

        Raises:
            ConfigurationError: the batch has other offsets now.
        """
        if is_same(self.offsets, offsets):
            return
        name = f"offsets/{self.batch_id}"
        raise ConfigurationError(
            f"since batch {self.batch_id} was handed over, Spark has planned it again, with other source offsets. Either the "
            f"file {name} was deleted, or an older copy of the checkpoint was restored. The output contains rows of the first "
            "plan, and the new query would write some of these rows again. Nothing was written. Do not run `twopc migrate "
            f"cutover` for the new plan. Stop the query, restore {name} from a backup, delete offsets/.{self.batch_id}.crc if it "
            f"exists, and restart. The source offsets of the first plan are {' '.join(self.offsets)}"
        )


class Handovers:
    """A checkpoint's hand-over files, each of which is written only once. The newest file is in effect.

    Args:
        files: the directory ``<checkpoint>/twopc``.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def newest(self) -> Handover | None:
        """Return the hand-over in effect. Return None if no hand-over was recorded.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        number = newest_number(self._files)
        return self._read(number) if number else None

    def add(self, handover: Handover) -> str:
        """Put a hand-over into effect, and return its file. Write nothing if the hand-over is already in effect.

        Raises:
            ConfigurationError: another process is adding a hand-over.
        """
        number = newest_number(self._files)
        if number and self._read(number) == handover:
            return self._path(number)
        if not self._files.put_if_absent(file_of(number + 1), seal(handover)):
            raise ConfigurationError(
                f"another process has just written {self._path(number + 1)}. Nothing was done. Run the command again"
            )
        return self._path(number + 1)

    def _read(self, number: int) -> Handover:
        data = self._files.read(file_of(number)) or b""
        return unseal_file(self._path(number), data, Handover, of_format=FORMAT, remedy=REMEDY)

    def _path(self, number: int) -> str:
        return f"{self._files.location}/{file_of(number)}"
