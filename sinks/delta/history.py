"""Find the table version that added a batch, and check whether the table was later restored to an earlier version."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twopc.sinks.delta.errors import translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

#: A version's entry in the table's log, with the facts that the commit recorded about itself.
Commit = dict[str, Any]

#: How many versions to search. Reading every version may take minutes.
_SEARCHED: Final = 1_000
#: The value that Spark records for a missing parameter.
_NULL: Final = "null"


class Found(NamedTuple):
    """The table version that added a batch.

    Attributes:
        version: the version that added the batch's rows.
        restored: the later version that restored the table to a state without these rows; None if the table still contains
            these rows.
    """

    version: int
    restored: int | None


def read_history(table: DeltaTable) -> Sequence[Commit]:
    """Read the newest versions in the table's log, newest first."""
    with translated("reading the table's history"):
        return table.history(_SEARCHED)


def rows_by_version(history: Sequence[Commit], sink: str) -> Mapping[int, int]:
    """For each decision, count the rows that the sink's commits added. A repaired decision has several commits."""
    rows: Counter[int] = Counter()
    for commit in history:
        if _is_counted(commit, sink):
            rows[int(commit["twopc.version"])] += int(commit["twopc.rows"])
    return rows


def complete_decisions(history: Sequence[Commit], sink: str) -> frozenset[int]:
    """Return the decisions whose commits are all in the history.

    Commits of the oldest decision may be missing from the history, unless the history includes the table's first version.
    """
    found = {int(commit["twopc.version"]) for commit in history if _is_counted(commit, sink)}
    is_whole = any(int(commit["version"]) == 0 for commit in history)
    return frozenset(found if is_whole else found - {min(found, default=0)})


def version_of_batch(history: Sequence[Commit], sink: str, batch: int) -> Found | None:
    """Find the newest version that added rows from this batch. Return None if the history does not include that version."""
    for commit in history:
        if commit.get("twopc.sink") == sink and str(commit.get("twopc.batch")) == str(batch):
            version = int(commit["version"])
            return Found(version, _removed(history, version))
    return None


def streamed_ms(history: Sequence[Commit], query_id: str, batch: int) -> int | None:
    """Return when Spark's own streaming writer committed a batch, according to the clock of the writer's driver.

    Return None if the history does not include that version. Source: ``StreamingUpdate`` in ``DeltaOperations.scala``.
    """
    for commit in history:
        found = commit.get("operationParameters") or {}
        if [str(found.get(name)).strip('"') for name in ("queryId", "epochId")] == [query_id, str(batch)]:
            return int(commit["timestamp"])
    return None


def _is_counted(commit: Commit, sink: str) -> bool:
    return commit.get("twopc.sink") == sink and "twopc.rows" in commit


def _removed(history: Sequence[Commit], version: int) -> int | None:
    """Find the restore that removed this version from the table's newest state.

    Return None if the newest state includes the version.

    A later restore may have undone a restore, so this function follows the restores back from the newest state.
    """
    at = int(history[0]["version"])
    for commit in history:
        now = int(commit["version"])
        if now > at or commit.get("operation") != "RESTORE":
            continue
        if now < version:
            return None
        at = _target(commit, history)
        if at < version:
            return now
    return None


def _target(commit: Commit, history: Sequence[Commit]) -> int:
    """Return the version to which a commit has restored the table; -1 if the history does not include that version."""
    given = commit.get("operationParameters", {})
    parameters = {name: str(value).strip('"') for name, value in given.items() if value not in {None, _NULL}}
    if "version" in parameters:
        return int(parameters["version"])
    restored_ms = _moment_ms(parameters)
    earlier = (one for one in history if one["version"] < commit["version"])
    return next(
        (int(one["version"]) for one in earlier if restored_ms is not None and one["timestamp"] <= restored_ms), -1
    )


def _moment_ms(parameters: Mapping[str, str]) -> float | None:
    """Return the time to which a commit has restored the table. Spark writes this time in its own time zone.

    This function assumes that Spark's time zone is the local one.
    """
    with contextlib.suppress(KeyError, ValueError):
        return int(parameters["datetime"])  # delta-rs writes this parameter
    with contextlib.suppress(KeyError, ValueError):
        return datetime.fromisoformat(parameters["timestamp"]).timestamp() * 1000
    return None
