"""Keep only the newest good periodic savepoints. A damaged savepoint is not counted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError
from twopc.files import sync
from twopc.integration.operate.manifest import check, savepoints_in

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.operate.manifest import Savepoint

#: The suffix of a savepoint that is being deleted. Its name also begins with a dot, so nothing reads it.
_DELETED: Final = ".deleted"


class Retention:
    """Deletes a query's periodic savepoints, except the newest good savepoints.

    Remembers which savepoints have already been verified.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        self._good: set[Path] = set()

    def apply(self, query_id: str) -> list[Path]:
        """Delete periodic savepoints that are older than the newest good savepoints. Return the deleted paths.

        A crash never leaves a half-deleted directory that looks like a savepoint. Requested savepoints, other queries'
        savepoints, and savepoints without a readable manifest stay.

        Raises:
            ConfigurationError: the directory does not exist.
            OSError: a savepoint cannot be deleted.
        """
        found, _ = savepoints_in(self._directory)
        ours = [one for one in found if one.manifest.is_periodic and one.manifest.query_id == query_id]
        good, deleted = 0, []
        for one in ours:  # from the newest to the oldest
            if good == self._keep:
                self._delete(one.path)
                deleted.append(one.path)
            elif self._is_good(one):
                good += 1
        for rest in self._directory.glob(f".*{_DELETED}"):
            shutil.rmtree(rest)
        return deleted

    def _is_good(self, one: Savepoint) -> bool:
        try:
            if one.path not in self._good:
                check(one)
        except ConfigurationError:
            return False
        self._good.add(one.path)
        return True

    def _delete(self, path: Path) -> None:
        """Durably rename a savepoint before its deletion, so that a half-deleted directory never looks like a savepoint."""
        path.rename(path.parent / f".{path.name}{_DELETED}")
        sync(path.parent)
