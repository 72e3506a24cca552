"""Commit batches to a Delta table from the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.errors import CheckpointExpiredError
from twopc.sinks.delta.entries import Entry
from twopc.sinks.delta.handle import DeltaHandle
from twopc.sinks.delta.history import complete_decisions, read_history, rows_by_version, streamed_ms, version_of_batch
from twopc.sinks.delta.objections import retention_ms
from twopc.sinks.delta.record import newest_transaction
from twopc.sinks.delta.step import Step
from twopc.sinks.lake.committer import LakeCommitter
from twopc.sinks.lake.history import History
from twopc.sinks.lake.words import Words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.sinks.delta.settings import DeltaSettings

#: A batch must be committed long before VACUUM may delete its files as unused.
_SHARE_OF_RETENTION: Final = 3


class DeltaCommitter(LakeCommitter[DeltaHandle, Step, Entry]):
    """See :class:`LakeCommitter`. The sink's pointer refers to the file that contains the control record."""

    words = Words(
        moved="pointer",
        recreated="was deleted and recreated",
        restored="was restored to an older state while this driver was running, or another writer overwrote this sink's commit",
        lost="its log no longer contains some committed batches, because an older copy of the table's files was restored",
    )

    def __init__(self, settings: DeltaSettings) -> None:
        super().__init__(settings.name, settings.table_uri, settings.timeout_ms, Entry)
        self._settings = settings
        self._store = settings.store()

    def begin(self) -> Step:
        """See :class:`LakeCommitter`."""
        return Step(self._store, self._settings)

    def young_ms(self, step: Step) -> float:
        """See :class:`LakeCommitter`."""
        return (retention_ms(step.view.definition.configuration) or 0) / _SHARE_OF_RETENTION

    def require_young(self, step: Step, age_ms: float) -> None:
        """See :class:`LakeCommitter`."""
        limit_ms = self.young_ms(step)
        if age_ms > limit_ms:
            raise CheckpointExpiredError(
                f"sink {self.name!r}: the batch's oldest file may be {age_ms:.0f} ms old. The limit is {limit_ms:.0f} ms, a "
                "third of delta.deletedFileRetentionDuration, because VACUUM may delete uncommitted files that are "
                "older than this retention time. Nothing was decided. Write smaller batches, or increase "
                "delta.deletedFileRetentionDuration. If no batch took that long, set the clocks of the driver and the executors"
            )

    def stage(
        self, step: Step, found: Mapping[DeltaHandle, list[Entry] | None]
    ) -> Mapping[DeltaHandle, list[Entry] | None]:
        """See :class:`LakeCommitter`."""
        step.additions = self.renewed(step, {one: entries for one, entries in found.items() if entries is not None})
        return found

    def history(self, step: Step) -> History | None:
        """See :class:`LakeCommitter`."""
        commits = read_history(step.view.table)
        added = version_of_batch(commits, self.name, step.view.outcome.batch)
        if added is None:
            return None
        restored = f"version {added.restored} restored the table to an earlier state"
        return History(
            kind="version",
            entry=added.version,
            removed=None if added.restored is None else restored,
            rows=rows_by_version(commits, self.name),
            complete=complete_decisions(commits, self.name),
        )

    def newest_batch_of_others(self, query_id: str) -> int | None:
        """See :class:`SinkCommitter`. Spark's writer records each batch as an application transaction (``DeltaSink.scala``)."""
        with self._try("reading the batches that Spark's own writer committed"), self.step() as step:
            return newest_transaction(step.view.table, query_id)

    def committed_by_others_ms(self, query_id: str, batch_id: int) -> int | None:
        """See :class:`SinkCommitter`."""
        with self._try("reading when Spark's own writer committed a batch"), self.step() as step:
            return streamed_ms(read_history(step.view.table), query_id, batch_id)

    def close(self) -> None:
        """See :class:`LakeCommitter`."""
        self._store.close()
