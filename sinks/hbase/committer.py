"""The driver's side of an HBase sink: the steps of the staged committer, on rows of the sink's own table."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sinks.hbase import staging
from sinks.hbase.apply import Applier
from sinks.hbase.control import ControlCell, State
from sinks.hbase.errors import FAILURES, AbsentTableError, RemoteError, translate
from sinks.hbase.fence import Fence, state_of, top_of
from sinks.hbase.handle import HBaseHandle
from sinks.hbase.messages import name_parts
from sinks.hbase.preflight import objections
from sinks.staged.committer import StagedCommitter, first_failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sinks.hbase.settings import HBaseSettings
    from sinks.staged.slices import SliceState
    from twopc.attempt import Claim


class HBaseCommitter(StagedCommitter[HBaseHandle]):
    """See :class:`StagedCommitter`. A version is a timestamp: cells of a decision have its version, or a little more."""

    system = "HBase"
    failures = FAILURES
    _translate = staticmethod(translate)

    def __init__(self, settings: HBaseSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._table = settings.staging_table
        self._client = settings.create_client()
        self._control = ControlCell(self._client, table=self._table, sink=self.name)
        self._fence = Fence(self._client, table=self._table, sink=self.name)
        self._applier = Applier(self._client, self._fence, table=self._table, sink=self.name)

    def close(self) -> None:
        """See :class:`StagedCommitter`."""
        self._client.close()

    def _objections(self) -> Iterator[tuple[bool, str]]:
        tables = [self._settings.table, self._table]
        return objections(self._settings, self._client.retry(lambda: self._client.cluster.describe(tables)))

    def _read_control(self) -> State:
        try:
            return self._control.read()
        except AbsentTableError:
            return State()  # the first driver creates it

    def _acquire(self, claim: Claim, seen: int) -> int:
        self._client.retry(self._create_table)
        return self._control.acquire(claim, seen=seen).driver_epoch

    def _reserve(self, run: str, above: int) -> int:
        return self._control.reserve(run, above=max(above, self._fence.read().top))

    def _checksums(self, handles: Sequence[HBaseHandle]) -> dict[HBaseHandle, str | Exception]:
        return {
            handle: answer if isinstance(answer, Exception) else staging.fold(staging.digests_of(answer))
            for handle, answer in self._digests(handles).items()
        }

    def _top(self, handles: Sequence[HBaseHandle], version: int) -> int:
        return top_of(handles, version)

    def _record_decision(self, run: str, handles: Sequence[HBaseHandle], version: int) -> None:
        self._control.record_decision(run, version)
        self._fence.raise_to(version, top_of(handles, version))

    def _look(self, handles: Sequence[HBaseHandle], version: int, *, durable: bool) -> dict[HBaseHandle, SliceState]:
        del durable  # every answer is
        # Slices first: another driver removes a committed slice only after it has recorded its progress.
        found = self._digests(handles)
        first_failure(found.values())
        progress = self._fence.read()
        return {
            handle: state_of(
                handle, progress, version, is_whole=len(staging.digests_of(found[handle])) == handle.chunks
            )
            for handle in handles
        }

    def _apply(self, handle: HBaseHandle, version: int) -> list[str]:
        return self._applier.apply(handle, version)

    def _is_ordered(self, handle: HBaseHandle) -> bool:
        # What the next task appends comes behind what this one appends.
        return handle.operation == "APPEND"

    def _tombstone(self, handle: HBaseHandle, version: int) -> bool:
        self._fence.tombstone(handle.uuid, version)
        if handle.uuid not in self._fence.read().tombstones:
            return False
        # The tombstone is the proof; what remains of the slice is only in the way.
        with contextlib.suppress(*FAILURES):
            self._discard([handle])
        return True

    def _discard(self, handles: Sequence[HBaseHandle]) -> None:
        self._remove([handle.row(self.name) for handle in handles])

    def _entries(self) -> dict[str, str]:
        found = self._client.scan(self._table, staging.slices_prefix(self.name), staging.STATE)
        return {staging.entry_of_row(result.cell[0].row): "" for result in found}

    def _sweep(self, orphans: Mapping[str, str]) -> None:
        # A task whose slice is removed can write no more: it finds the slice closed.
        self._remove([staging.row_of_entry(self.name, entry) for entry in orphans])

    def _digests(self, handles: Sequence[HBaseHandle]) -> dict[HBaseHandle, Any]:
        ops = [staging.look_at_digests(self._table, handle.row(self.name)) for handle in handles]
        return dict(zip(handles, self._client.execute(ops), strict=True))

    def _create_table(self) -> None:
        """Create the sink's own table if absent."""
        cluster = self._client.cluster
        if self._table not in cluster.describe([self._table]):
            # Another driver may create it at the same time; if neither can, the look below says so.
            with contextlib.suppress(RemoteError):
                cluster.call_master(lambda master: master.create_table(*name_parts(self._table), staging.families()))
        try:
            cluster.region_of(self._table, b"")
        except AbsentTableError as error:
            raise ConnectionError(f"{error} yet") from error

    def _remove(self, rows: Sequence[bytes]) -> None:
        first_failure(self._client.execute([staging.remove_slice(self._table, row) for row in rows]))
