"""Commit batches to an Iceberg table from the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.errors import CheckpointExpiredError, ConfigurationError
from twopc.fenced_committer import driver_epoch_of
from twopc.sinks.iceberg.definition import find
from twopc.sinks.iceberg.entries import Entry
from twopc.sinks.iceberg.handle import IcebergHandle
from twopc.sinks.iceberg.history import complete_decisions, is_in_main, rows_by_version, snapshot_of
from twopc.sinks.iceberg.prepared import added_already, batches_added
from twopc.sinks.iceberg.properties import find_malformed
from twopc.sinks.iceberg.proposal import require_listable
from twopc.sinks.iceberg.spark_writer import committed_ms, newest_batch
from twopc.sinks.iceberg.step import Step
from twopc.sinks.lake.committer import LakeCommitter
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.history import History
from twopc.sinks.lake.prepared import entries_of
from twopc.sinks.lake.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from twopc.sinks.iceberg.proposal import Additions
    from twopc.sinks.iceberg.settings import IcebergSettings

#: A batch must be committed long before maintenance may delete its files as orphans.
_SHARE_OF_ORPHAN_AGE: Final = 3


class IcebergCommitter(LakeCommitter[IcebergHandle, Step, Entry]):
    """See :class:`LakeCommitter`. The sink's tag points to a snapshot whose summary contains the control record."""

    words = Words(
        moved="tag",
        recreated="was dropped and recreated",
        restored="was restored to an older state, or the sink's tag was moved back or deleted",
        lost="the table no longer contains some committed batches, because an older state was restored or the sink's tag was "
        "recreated",
    )

    def __init__(self, settings: IcebergSettings) -> None:
        super().__init__(settings.name, settings.table, settings.timeout_ms, Entry)
        self._settings = settings
        self._store = settings.store()

    def begin(self) -> Step:
        """See :class:`LakeCommitter`."""
        return Step(self._store, self._settings)

    def observing(self) -> AbstractContextManager[Step]:
        """See :class:`LakeCommitter`."""
        self._store.only_read()
        return self.step()

    def young_ms(self, step: Step) -> float:
        """See :class:`LakeCommitter`."""
        del step
        return self._settings.orphan_age_ms / _SHARE_OF_ORPHAN_AGE

    def require_young(self, step: Step, age_ms: float) -> None:
        """See :class:`LakeCommitter`."""
        limit_ms = self.young_ms(step)
        if age_ms > limit_ms:
            raise CheckpointExpiredError(
                f"sink {self.name!r}: the batch's oldest file may be {age_ms:.0f} ms old. The limit is a third of "
                f"orphan_age_ms={self._settings.orphan_age_ms}, because table maintenance may delete uncommitted files that "
                "are older than orphan_age_ms. Nothing was decided. Write smaller batches, or increase both orphan_age_ms and "
                "the minimum age of the files that remove_orphan_files deletes. If no batch took that long, set the clocks of "
                "the driver and the executors"
            )

    def require_addable(self, step: Step, found: Mapping[IcebergHandle, list[Entry] | None]) -> None:
        """See :class:`LakeCommitter`."""
        written: Additions = {}
        for handle, entries in found.items():
            written.setdefault(handle.definition, []).extend(entries or ())
        for definition, entries in written.items():  # comparing a definition takes long if the table has many columns
            require_listable(step.view.table, definition, entries)

    def stage(
        self, step: Step, found: Mapping[IcebergHandle, list[Entry] | None]
    ) -> Mapping[IcebergHandle, list[Entry] | None]:
        """See :class:`LakeCommitter`.

        If the table no longer has a schema or partitioning, no manifest can list the files that need it, even if the table has
        reused the id.

        Raises:
            StoreError: since the decision, a table property has been set to a value that makes every commit fail.
        """
        for objection in find_malformed(step.view.table.metadata, is_decided=True):
            raise StoreError(f"{self._table} {objection}", ConfigurationError)
        metadata = step.view.table.metadata
        written = {handle.definition for handle in found}
        removed = {definition for definition in written if find(metadata, definition) is None}
        found = self._without_added(step, found)
        found = {
            handle: None if entries and handle.definition in removed else entries for handle, entries in found.items()
        }
        step.additions = self.renewed(step, {one: entries for one, entries in found.items() if entries})
        return found

    def batches_in_table(self, step: Step, batch_of: Callable[[str], int | None]) -> set[int]:
        """See :class:`LakeCommitter`. The tag may have been recreated on an older snapshot."""
        newest = snapshot_of(step.view.table.metadata, self.name, step.view.outcome.batch)
        return batches_added(step.view.table, (newest.sequence_number or 0) if newest else 0, batch_of)

    def history(self, step: Step) -> History | None:
        """See :class:`LakeCommitter`."""
        metadata = step.view.table.metadata
        added = snapshot_of(metadata, self.name, step.view.outcome.batch)
        if added is None:
            return None
        gone = "the branch main no longer includes this snapshot, because the table was rolled back or the branch was replaced"
        return History(
            kind="snapshot",
            entry=added.snapshot_id,
            removed=gone if is_in_main(metadata, added) is False else None,
            rows=rows_by_version(metadata, self.name),
            complete=complete_decisions(metadata, self.name),
        )

    def newest_batch_of_others(self, query_id: str) -> int | None:
        """See :class:`SinkCommitter`. Spark's own streaming writer records its batches in the snapshots."""
        with self._try("reading the batches that Spark's own writer committed"), self.step() as step:
            return newest_batch(step.view.table.metadata, query_id)

    def committed_by_others_ms(self, query_id: str, batch_id: int) -> int | None:
        """See :class:`SinkCommitter`."""
        with self._try("reading when Spark's own writer committed a batch"), self.step() as step:
            return committed_ms(step.view.table.metadata, query_id, batch_id)

    def close(self) -> None:
        """See :class:`LakeCommitter`."""
        self._store.close()

    def _without_added(
        self, step: Step, found: Mapping[IcebergHandle, list[Entry] | None]
    ) -> dict[IcebergHandle, list[Entry] | None]:
        """If the tag was recreated, omit the transactions that are in the table but missing from the tag's record.

        One commit adds all files of an attempt, except those of lost transactions, and no lost transaction becomes whole
        again. So one file in the table proves the commit. Another file may be missing because its rows were deleted, and must
        not be added again. If the table contains copies of a transaction's files, maintenance may have deleted the originals.

        Look only for earlier drivers' files, because a running driver knows its own record.
        """
        earlier = [one for one in found if driver_epoch_of(one.transaction, self.name) != self._driver_epoch]
        named = {one: {entry.path for entry in entries_of(step.view.files, one, Entry) or ()} for one in earlier}
        paths = set[str]().union(*named.values())
        added = added_already(step.view.table, paths) if paths else set()

        attempts = {handle.attempt for handle, wanted in named.items() if wanted & added}

        def is_added(handle: IcebergHandle, entries: list[Entry] | None) -> bool:
            return handle.attempt in attempts and (entries is not None or bool(named[handle] & added))

        return {handle: [] if is_added(handle, entries) else entries for handle, entries in found.items()}
