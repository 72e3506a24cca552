"""Find the files of transactions that no driver will decide.

The newest decision in the table determines which directories to search, so that the search never finds a committed file. The
search skips the files of batches and drivers before this decision. The search also skips the files of the decision's own
batch, unless the caller knows the decision's transactions. Files of batches after the decision were never added to the
table.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from twopc.sinks.lake.layout import directory, transaction_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twopc.sinks.lake.files import Files
    from twopc.sinks.lake.published import Published


class Orphans:
    """Lists orphaned files, and remembers the files until they are deleted."""

    def __init__(self) -> None:
        self._paths: dict[str, list[str]] = defaultdict(list)
        self._decided: set[tuple[int, int]] = set()
        self._has_searched = False

    def spare(self, decided: Iterable[tuple[int | None, int]]) -> None:
        """Remember the driver epoch and batch of each decided transaction. Files of decided transactions must stay."""
        self._decided = {(epoch, batch) for epoch, batch in decided if epoch is not None}

    def note(self, transaction: str, paths: Iterable[str]) -> None:
        """Remember a transaction's files."""
        self._paths[transaction] = [path for path in paths if path]

    def take(self, transaction: str) -> list[str]:
        """Return a transaction's known files, and forget them."""
        return self._paths.pop(transaction, [])

    def find(self, files: Files, base: str, published: Published, own_epoch: int) -> list[str]:
        """List orphaned files, and return the names of their transactions.

        Args:
            files: the table's storage.
            base: the directory for the sink's files.
            published: the newest decision in the table.
            own_epoch: the caller's driver epoch.

        Raises:
            StoreError: the storage did not respond.
        """
        self._paths.clear()
        for epoch, batch in self._directories(files, base, published, own_epoch):
            where = directory(base, epoch, batch)
            for name in files.listed(where):
                if transaction := transaction_of(name):
                    self._paths[transaction].append(f"{where}/{name}")
        self._has_searched = True
        return list(self._paths)

    def _directories(self, files: Files, base: str, published: Published, own_epoch: int) -> Iterator[tuple[int, int]]:
        newest = (published.epoch, published.batch)
        for place in self._searched(files, base, own_epoch, published.epoch):
            if place > newest or (place == newest and place in self._decided):
                yield place

    def _searched(self, files: Files, base: str, own_epoch: int, first_epoch: int) -> Iterator[tuple[int, int]]:
        if self._has_searched and self._decided:
            # This driver's failed attempts were for the newest batch, or are for the next batch.
            for epoch, batch in sorted(self._decided):
                yield epoch, batch
                yield own_epoch, batch + 1
            return
        for epoch in _numbers(files, base):
            if first_epoch <= epoch <= own_epoch:
                for batch in _numbers(files, f"{base}/{epoch}"):
                    yield epoch, batch


def _numbers(files: Files, path: str) -> list[int]:
    return [int(name) for name in files.listed(path, directories=True) if name.isdecimal()]
