"""The files of transactions that nobody will decide: where they may be, and which of them are there.

Which directories are searched follows from the newest decision in the table, so that no committed file is ever a candidate: files
of an earlier batch or driver are not looked at, those of the newest batch only if the caller knows that decision's transactions,
and later ones were never added to the table.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from twopc import control
from twopc.sinks.iceberg.errors import translated
from twopc.sinks.iceberg.layout import layout_of, transaction_of
from twopc.sinks.iceberg.private import Listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twopc.sinks.iceberg.record import Published
    from twopc.sinks.iceberg.step import Step


class Orphans:
    """See above.

    Args:
        sink: the sink's name.
    """

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._paths: dict[str, list[str]] = defaultdict(list)
        self._decided: set[tuple[int, int]] = set()
        self._has_searched = False

    def spare(self, decided: Iterable[tuple[int | None, int]]) -> None:
        """Take note of the driver epoch and the batch of the decided transactions, whose files the caller spares."""
        self._decided = {(epoch, batch) for epoch, batch in decided if epoch is not None}

    def note(self, transaction: str, paths: Iterable[str]) -> None:
        """Take note of the files of a transaction."""
        self._paths[transaction] = [path for path in paths if path]

    def take(self, transaction: str) -> list[str]:
        """The files of a transaction that are known, once."""
        return self._paths.pop(transaction, [])

    def find(self, step: Step, own_epoch: int) -> list[str]:
        """List the files; return the names of their transactions.

        Raises:
            StoreError: the storage did not answer.
        """
        if step.tagged is None:
            return []
        published, sink_id = step.tagged.published, control.decode(step.tagged.control).id
        listing = Listing(step.table.io, layout_of(step.table.metadata, self._sink, sink_id).root)
        if not listing.is_possible:
            return []
        self._paths.clear()
        with translated("listing the sink's files"):
            for epoch, batch in self._directories(listing, published, own_epoch):
                for path in listing.files(f"{epoch}/{batch}"):
                    if name := transaction_of(path):
                        self._paths[name].append(path)
        self._has_searched = True
        return list(self._paths)

    def _directories(self, listing: Listing, published: Published, own_epoch: int) -> Iterator[tuple[int, int]]:
        for epoch, batch in self._searched(listing, own_epoch, published.epoch):
            place, newest = (epoch, batch), (published.epoch, published.batch)
            if place > newest or (place == newest and place in self._decided):
                yield place

    def _searched(self, listing: Listing, own_epoch: int, first_epoch: int) -> Iterator[tuple[int, int]]:
        if self._has_searched and self._decided:
            # Failed attempts of this driver were at the newest batch, or are at the next one.
            for epoch, batch in sorted(self._decided):
                yield epoch, batch
                yield own_epoch, batch + 1
            return
        for epoch in map(int, filter(str.isdecimal, listing.directories())):
            if first_epoch <= epoch <= own_epoch:
                for batch in map(int, filter(str.isdecimal, listing.directories(str(epoch)))):
                    yield epoch, batch
