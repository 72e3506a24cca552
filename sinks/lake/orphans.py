"""Find the files of transactions that no driver will decide.

The newest decision in the table determines which directories to search, so the search never finds a committed file. The
search skips the files of batches and drivers before this decision. The search also skips the files of the decision's own
batch, unless the caller knows the decision's transactions. Files of batches after the decision were never added to the
table, unless the record was set back. So before the first search returns any file, the caller must check the record.

The first search looks at the directories of all drivers. After that, new orphans can only be in the directories of the batch
that was decided last, and of the next batch. So a sweep takes no longer after a million batches than after one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from twopc.sinks.lake.layout import directory, group_of, place_of, transaction_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.published import Published


class Orphans:
    """Lists orphaned files, and remembers the files until they are deleted."""

    def __init__(self) -> None:
        self._paths: dict[str, list[str]] = defaultdict(list)
        self._decided: set[tuple[int, int]] = set()
        self._without_rows: int | None = None
        self._has_searched = False

    def spare(self, decided: Iterable[tuple[int | None, int]]) -> None:
        """Remember the driver epoch and batch of each decided transaction. Files of decided transactions must stay."""
        self._decided = {(epoch, batch) for epoch, batch in decided if epoch is not None}

    def complete(self, batch: int, *, has_rows: bool) -> None:
        """Remember the batch that this driver decided last. If it has no rows, no transaction identifies its directory."""
        self._without_rows = None if has_rows else batch

    def note(self, transaction: str, paths: Iterable[str]) -> None:
        """Remember a transaction's files."""
        self._paths[transaction] = [path for path in paths if path]

    def take(self, transaction: str) -> list[str]:
        """Return a transaction's known files, and forget them."""
        return self._paths.pop(transaction, [])

    def find(
        self, files: Files, base: str, published: Published, own_epoch: int, check: Callable[[], None] = lambda: None
    ) -> list[str]:
        """List orphaned files, and return the names of their transactions.

        Args:
            files: the table's storage.
            base: the directory for the sink's files.
            published: the newest decision in the table.
            own_epoch: the caller's driver epoch.
            check: raises an error if the table contains later batches than ``published``. The first search calls it, unless
                the storage contains no such batch. If it fails, the next search counts as the first.

        Raises:
            StoreError: the storage did not respond.
        """
        self._paths.clear()
        for epoch, batch in self._directories(files, base, published, own_epoch):
            where = directory(base, epoch, batch)
            for name in files.listed(where):
                if transaction := transaction_of(name):
                    self._paths[transaction].append(f"{where}/{name}")
        if not self._has_searched and (self._paths or any(epoch > own_epoch for epoch in _numbers(files, base))):
            check()
        self._has_searched = True
        return list(self._paths)

    def newer_batch(self, path: str, base: str, published: Published) -> int | None:
        """Return the batch of a file that the table lists. Return None unless it comes after the newest known decision."""
        place = place_of(path, base)
        is_newer = place is not None and place > (published.epoch, published.batch) and place not in self._decided
        return place[1] if place is not None and is_newer else None

    def _directories(self, files: Files, base: str, published: Published, own_epoch: int) -> Iterator[tuple[int, int]]:
        newest = (published.epoch, published.batch)
        for place in self._searched(files, base, own_epoch, published):
            if place > newest or (place == newest and place in self._decided):
                yield place

    def _searched(self, files: Files, base: str, own_epoch: int, published: Published) -> Iterable[tuple[int, int]]:
        if self._has_searched and (last := self._last_places(own_epoch)):
            # This driver's failed attempts were for the batch that was decided last, or are for the next batch.
            return sorted(last | {(own_epoch, batch + 1) for _, batch in last})
        return _places(files, base, own_epoch, published)

    def _last_places(self, own_epoch: int) -> set[tuple[int, int]]:
        if self._decided or self._without_rows is None:
            return self._decided
        return {(own_epoch, self._without_rows)}


def _places(files: Files, base: str, own_epoch: int, published: Published) -> Iterator[tuple[int, int]]:
    """List every driver epoch and batch that has a directory, starting at the newest decision's group."""
    first = (published.epoch, group_of(published.batch))
    for epoch in _numbers(files, base):
        if published.epoch <= epoch <= own_epoch:
            for group in _numbers(files, f"{base}/{epoch}"):
                if (epoch, group) >= first:
                    for batch in _numbers(files, f"{base}/{epoch}/{group}"):
                        yield epoch, batch


def _numbers(files: Files, path: str) -> list[int]:
    return [int(name) for name in files.listed(path, directories=True) if name.isdecimal()]
