"""Implement the staged committer's steps with rows in the sink's own HBase table."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from twopc import control
from twopc.errors import release
from twopc.sinks.hbase import clock, staging
from twopc.sinks.hbase.apply import AT_ONCE, Applier
from twopc.sinks.hbase.check import Check, noted_in
from twopc.sinks.hbase.control import ControlCell
from twopc.sinks.hbase.errors import FAILURES, AbsentTableError, RemoteError, is_denied
from twopc.sinks.hbase.fence import Fence, state_of, top_of
from twopc.sinks.hbase.mappings import MARKED
from twopc.sinks.hbase.row_ops import look
from twopc.sinks.hbase.settings import is_synced
from twopc.sinks.hbase.staging import HBaseHandle
from twopc.sinks.staged.client import checked
from twopc.sinks.staged.committer import StagedCommitter
from twopc.sinks.staged.slices import SliceState
from twopc.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from twopc.attempt import Claim, Owner
    from twopc.sinks.hbase.client import HBaseClient
    from twopc.sinks.hbase.messages import Message
    from twopc.sinks.hbase.settings import HBaseSettings
    from twopc.sinks.staged.client import StoreClient

logger = logging.getLogger(__name__)


class HBaseCommitter(StagedCommitter[HBaseHandle]):
    """See :class:`StagedCommitter`. A version is a timestamp.

    The cells that a decision writes have the decision's version as their timestamp, or a slightly higher timestamp.
    """

    _client: HBaseClient

    def __init__(self, settings: HBaseSettings) -> None:
        client, table, sink = settings.create_client(), settings.staging_table, settings.name
        super().__init__(settings, client)
        self._cell = ControlCell(table=table, sink=sink)
        self._tables = [settings.table, table]
        self._table = table
        self._data_table = settings.table
        self._operation = settings.mapping.operation
        self._places = settings.mapping.places
        self._decided: Sequence[HBaseHandle] = ()
        self._newest = 0  # the version of this run's newest attempt
        self._has_tombstones = True  # the newest decision may have tombstones; unknown at a start
        self._fence = Fence(client, table=table, sink=sink)
        self._check = Check(client, settings)
        self._applier = Applier(client, self._fence, table=table, sink=sink)

    def load(self, step: StoreClient[Any]) -> bytes | None:
        """See :class:`ControlCommitter`. Return None if the table does not exist yet."""
        try:
            return self._cell.load(step)
        except AbsentTableError:
            if self._run:
                raise  # this driver has already used the table, so the table must have been dropped since
            return None

    def swap(self, step: StoreClient[Any], old: bytes | None, new: bytes) -> bool:
        """See :class:`ControlCommitter`."""
        return self._cell.swap(step, old, new)

    def acquire(self, claim: Claim, seen: Owner | None) -> int:
        """See :class:`StagedCommitter`. Create the sink's own table if it does not exist."""
        with self._try("creating its table"):
            self._create_table()
        self._check_clocks()
        return super().acquire(claim, seen)

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`StagedCommitter`. The version is higher than every timestamp that a decision may have used."""
        with self._try("reading its fence"):
            progress = self._fence.read(None if self._has_tombstones else ())
            # A repair of the last decision may have used timestamps above that decision's top (see `starts_of`).
            self._highest_version = max(self._highest_version, progress.top) + sum(progress.tombstones.values())
        scan_start = super().begin_attempt()
        self._newest = self._highest_version
        return scan_start

    def _check_clocks(self) -> None:
        here_ms = control.now_ms()  # read first, so that a slow response cannot make this host's clock look ahead
        with self._try("reading HBase's clock"):
            server_ms = clock.read_server_clock(self._client, table=self._table, sink=self.name)
        version = self._read("reading its newest version").version
        if not version:
            # The rows of a former sink with this name may have been deleted, and a deletion hides earlier timestamps.
            self._highest_version = max(self._highest_version, server_ms)
        if self._operation not in MARKED:  # otherwise, the rows' cells carry the servers' time
            clock.require_not_ahead(self.name, here_ms=here_ms, server_ms=server_ms)
            if not version:
                clock.require_not_behind(self.name, here_ms=control.now_ms(), server_ms=server_ms)
            clock.warn_if_ahead(
                self.name, version=version, server_ms=server_ms, table=self._data_table, own_table=self._table
            )

    def _describe(self) -> list[dict[str, Message]]:
        try:
            schemas = self._client.retry(lambda: self._client.cluster.describe(self._tables))
        except RemoteError as error:
            if not is_denied(error):
                raise
            release(error)
        else:
            self._client.synced |= {table for table, schema in schemas.items() if is_synced(schema)}
            return [schemas]
        # This read fails if the data table or one of its families does not exist. The sink's own table is read next.
        self._client.execute_one(look(self._data_table, b"\0", self._places, sizes_only=True))
        logger.warning(
            "sink %r: the TTL and DURABILITY of the tables %s were not checked. HBase shows them only to a user with the "
            "permission CREATE or ADMIN on both tables. With a TTL, markers and decided rows could expire. With SKIP_WAL "
            "or ASYNC_WAL, a crash could lose decided rows. Run 'describe' for both tables in the HBase shell, and remove each "
            "setting that docs/hbase.md forbids",
            self.name,
            " and ".join(map(repr, self._tables)),
        )
        return []

    def _checksums(self, handles: Sequence[HBaseHandle]) -> dict[HBaseHandle, str | Exception]:
        found = self._digests(handles)
        if not any(isinstance(answer, Exception) for answer in found.values()):
            noted = noted_in(list(found.values()))
            with self._try("reading cells"):
                self._check.require_together(handles, noted)
        return {
            handle: answer if isinstance(answer, Exception) else staging.fold(staging.digests_of(answer))
            for handle, answer in found.items()
        }

    def _top(self, handles: Sequence[HBaseHandle], version: int) -> int:
        return top_of(handles, version)

    def _apply_all(self, handles: Sequence[HBaseHandle], version: int) -> None:
        self._fence.raise_to(version, top_of(handles, version))
        if version == self._newest:  # a new decision has lost no slice yet, and older tombstones are deleted
            self._has_tombstones = False
        self._decided = handles
        super()._apply_all(handles, version)

    def _look(self, handles: Sequence[HBaseHandle], version: int, *, durable: bool) -> dict[HBaseHandle, SliceState]:
        del durable  # every response is durable
        # Read the slices first, because another driver removes a committed slice only after it has recorded the slice's progress.
        found = self._digests(handles)
        checked(found.values())
        progress = self._fence.read(handle.uuid for handle in handles)
        return {
            handle: state_of(handle, progress, version, is_whole=len(staging.digests_of(answer)) == handle.chunks)
            for handle, answer in found.items()
        }

    def _apply(self, handle: HBaseHandle, version: int) -> list[str]:
        return self._applier.apply(handle, version, self._decided, has_lost=self._has_tombstones)

    def _apply_each(self, handles: Sequence[HBaseHandle], version: int) -> Generator[tuple[HBaseHandle, Sequence[str]]]:
        # Each slice takes several round trips, so if the slices were applied one by one, a batch with many small tasks
        # would mostly wait.
        if any(self._is_ordered(handle) or not handle.distinct for handle in handles):
            yield from super()._apply_each(handles, version)
            return
        yield from at_once(
            lambda handle: (handle, self._apply(handle, version)), handles, threads=AT_ONCE, name="twopc-hbase"
        )

    def _to_repeat(self, states: Mapping[HBaseHandle, SliceState]) -> list[HBaseHandle]:
        # The record of applied slices is not in the data table. So if a snapshot of that table was restored while the batch
        # was blocked, the record does not show that these slices' rows are gone.
        return [handle for handle, state in states.items() if state is SliceState.COMMITTED]

    def _is_ordered(self, handle: HBaseHandle) -> bool:
        # The next task's values must be appended after this task's values.
        return handle.operation == "APPEND"

    def _tombstone(self, handle: HBaseHandle, version: int) -> bool:
        self._newest, self._has_tombstones = 0, True
        self._fence.tombstone(handle, version)
        if handle.uuid not in self._fence.read([handle.uuid]).tombstones:
            return False
        # The tombstone proves the loss, so the slice is no longer needed.
        with contextlib.suppress(*FAILURES):
            self._discard([handle])
        return True

    def _discard(self, handles: Sequence[HBaseHandle]) -> None:
        self._remove(handle.entry for handle in handles)

    def _entries(self) -> dict[str, str]:
        found = self._client.scan(self._table, staging.own_row(self.name, "slice/"), staging.STATE)
        return {staging.entry_of_row(result.cell[0].row): "" for result in found}

    def _sweep(self, orphans: Mapping[str, str]) -> int:
        # Removal also closes a slice, so its task can no longer write.
        self._remove(orphans)
        return len(orphans)

    def _remove(self, entries: Iterable[str]) -> None:
        rows = [staging.slice_row(self.name, entry) for entry in entries]
        checked(self._client.execute([staging.remove_slice(self._table, row) for row in rows]))

    def _digests(self, handles: Sequence[HBaseHandle]) -> dict[HBaseHandle, Any]:
        ops = [look(self._table, handle.row(self.name), family=staging.STATE) for handle in handles]
        return dict(zip(handles, self._client.execute(ops), strict=True))

    def _create_table(self) -> None:
        cluster, retry = self._client.cluster, self._client.retry
        try:
            retry(lambda: cluster.region_of(self._table, b""))
        except AbsentTableError:
            retry(lambda: cluster.create_table(self._table, staging.families()))
            retry(self._require_created)

    def _require_created(self) -> None:
        try:
            self._client.cluster.region_of(self._table, b"")
        except AbsentTableError as error:
            raise ConnectionError(f"{error} yet") from error
