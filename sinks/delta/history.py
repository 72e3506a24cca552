"""Find the version that added a batch, and check whether somebody has restored the table to an earlier one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twopc.sinks.delta.errors import translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

#: A version's entry in the table's log, with what the commit says about itself.
Commit = dict[str, Any]

#: How many versions are searched. Reading them all may take minutes.
_SEARCHED: Final = 1_000


class Found(NamedTuple):
    """The version of a batch.

    Attributes:
        version: the version that added the batch's rows.
        restored: a later version that restored the table to before this one, or to a time; None if there is none.
    """

    version: int
    restored: int | None


def read_history(table: DeltaTable) -> Sequence[Commit]:
    """Read the newest versions in the table's log, the newest one first."""
    with translated("reading the table's history"):
        return table.history(_SEARCHED)


def rows_by_version(history: Sequence[Commit], sink: str) -> Mapping[int, int]:
    """Count the rows that the sink's commits added, for each decision. A repaired decision has several commits."""
    rows: Counter[int] = Counter()
    for commit in history:
        if commit.get("twopc.sink") == sink and "twopc.rows" in commit:
            rows[int(commit["twopc.version"])] += int(commit["twopc.rows"])
    return rows


def version_of_batch(history: Sequence[Commit], sink: str, batch: int) -> Found | None:
    """Find the newest version that added rows of this batch; None if the history does not have it."""
    restored: list[Commit] = []
    for commit in history:
        if commit.get("operation") == "RESTORE":
            restored.append(commit)
        if commit.get("twopc.sink") == sink and str(commit.get("twopc.batch")) == str(batch):
            version = int(commit["version"])
            before = (int(one["version"]) for one in restored if _target(one) < version)
            return Found(version, next(before, None))
    return None


def _target(commit: Commit) -> int:
    """The version to which a commit has restored the table; -1 if it specifies a time instead."""
    target = commit.get("operationParameters", {}).get("version")
    return -1 if target in {None, "null"} else int(target)
