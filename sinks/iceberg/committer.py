"""The driver's side of the Iceberg sink: one commit adds a whole batch."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from twopc import control
from twopc.attempt import Evidence
from twopc.control_committer import NO_ATTEMPT, decided_before, version_of
from twopc.errors import CheckpointExpiredError, ConfigurationError, RefusedStartError, RetriableError
from twopc.fenced_committer import FencedCommitter, driver_epoch_of
from twopc.sinks.iceberg.errors import OvertakenError, StoreError, explained, reason
from twopc.sinks.iceberg.handle import IcebergHandle
from twopc.sinks.iceberg.orphans import Orphans
from twopc.sinks.iceberg.prepared import added_already, entries_of, whole
from twopc.sinks.iceberg.proposal import has_definitions
from twopc.sinks.iceberg.record import Published
from twopc.sinks.iceberg.spark_writer import newest_batch
from twopc.sinks.iceberg.step import Step
from twopc.sinks.iceberg.store import delete

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from twopc.control import Control
    from twopc.errors import TwoPhaseCommitError
    from twopc.sinks.iceberg.entries import Entry
    from twopc.sinks.iceberg.settings import IcebergSettings

logger = logging.getLogger(__name__)

#: A driver's versions are above those of every former driver, so that nobody else reserves the same one.
_VERSIONS_OF_A_DRIVER: Final = 32
_OVERTAKEN_ROUNDS: Final = 20
#: A batch must be in the table long before maintenance may take its files for orphans.
_SHARE_OF_ORPHAN_AGE: Final = 3


class IcebergCommitter(FencedCommitter[IcebergHandle, Step]):
    """See :class:`FencedCommitter`.

    The control record is in the summary of the snapshot that the sink's tag names, together with the outcome of the newest
    decision. A commit adds the batch's files and moves the tag, so the two never differ.
    """

    failures = (StoreError,)

    def __init__(self, settings: IcebergSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._store = settings.store()
        self._orphans = Orphans(settings.name)
        self._uuid = ""
        self._revision = 0

    # -- the store's hooks ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """See :class:`FencedCommitter`."""
        step = Step(self._store, self.name)
        yield step
        step.end(self._settings.timeout_ms)

    def explain(self, error: Exception, what: str) -> TwoPhaseCommitError:
        """See :class:`FencedCommitter`."""
        return explained(error, what)

    def reason(self, error: Exception) -> str:
        """See :class:`FencedCommitter`."""
        return reason(error)

    def is_passing(self, error: Exception) -> bool:
        """See :class:`FencedCommitter`: not what only a person can change."""
        return not issubclass(getattr(error, "kind", ConfigurationError), ConfigurationError)

    def check_store(self, step: Step) -> None:
        """See :class:`FencedCommitter`."""
        self._settings.require_supported(step.table)

    def load(self, step: Step) -> bytes | None:
        """See :class:`FencedCommitter`."""
        uuid = str(step.table.metadata.table_uuid)
        if self._uuid not in {"", uuid}:
            raise StoreError(
                f"{self._settings.table} was dropped and created again, so the rows of earlier batches are gone",
                ConfigurationError,
                "Restore the former table; or use a new checkpoint and a new sink name",
            )
        self._uuid = uuid
        stored = step.control or (step.tagged.control if step.tagged else None)
        revision = control.decode(stored).revision
        if revision < self._revision:
            raise StoreError(
                f"{self._settings.table} was restored to an older state, or the sink's tag was moved back or deleted",
                ConfigurationError,
                "Restore the newer state; or use a new checkpoint and a new sink name",
            )
        return stored

    def swap(self, step: Step, old: bytes | None, new: bytes) -> bool:
        """See :class:`FencedCommitter`: takes effect when the step ends, if the tag has not moved since it began."""
        del old
        step.control = new
        return True

    def is_prepared(self, step: Step, handle: IcebergHandle) -> bool:
        """See :class:`FencedCommitter`."""
        return whole(step.table, [handle])[handle] is not None

    def publish(self, step: Step, handle: IcebergHandle, version: int) -> None:
        """See :class:`FencedCommitter`."""
        list(self.publish_all(step, [handle], version))

    def publish_all(self, step: Step, handles: Sequence[IcebergHandle], version: int) -> Iterator[IcebergHandle]:
        """See :class:`FencedCommitter`: all transactions with one commit."""
        published = step.tagged.published if step.tagged else Published()
        if control.decode(self.load(step)).decided == version and version >= published.version:
            if published.version != version:
                published = Published(version=version)
            # Of a repair's files, those of the repairing driver: a sweep takes what is in a later place for orphans.
            places = ((driver_epoch_of(one.transaction, self.name) or 0, one.batch) for one in handles)
            epoch, batch = max((published.epoch, published.batch), *places)
            published = replace(published, epoch=epoch, batch=batch)
            self._add(step, [handle for handle in handles if handle.attempt not in published.attempts], published)
        yield from handles

    def outcome(self, step: Step, handle: IcebergHandle) -> Evidence:
        """See :class:`FencedCommitter`: what is known without the decision's version, see :meth:`prove`."""
        del step, handle
        return Evidence.UNKNOWN

    def roll_back(self, step: Step, transaction: str, version: int) -> None:
        """See :class:`FencedCommitter`. Files are never written again under the same name, so nothing else is needed."""
        del version
        for path in self._orphans.take(transaction):
            delete(step.table, path)

    def pending(self, step: Step) -> list[str]:
        """See :class:`FencedCommitter`."""
        return self._orphans.find(step, self._driver_epoch)

    # -- for callers ----------------------------------------------------------------------------------------------------

    def binding(self) -> Mapping[str, str]:
        """See :class:`FencedCommitter`: also the table, which is another one if somebody creates it anew."""
        bound = super().binding()
        return {**bound, "table": self._uuid}

    def has_newer_decision(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`FencedCommitter`.

        Raises:
            RefusedStartError: the table is older than the checkpoint.
        """
        known = scan_start or NO_ATTEMPT
        with self._try("reading its newest decision"), self.step() as step:
            record = control.decode(self.load(step))
            newest = max(record.decided, step.tagged.published.version if step.tagged else 0)
        if newest < decided_before(known) or record.driver_epoch < version_of(known) >> _VERSIONS_OF_A_DRIVER:
            raise RefusedStartError(
                f"sink {self.name!r}: {self._settings.table} is older than this checkpoint: batches that were in the table are "
                "not among its commits any more. Somebody has restored an older state, or recreated the tag. Nothing was "
                "written. Restore the newer state of the table; or use a new checkpoint and a new sink name",
                case="older table",
            )
        return super().has_newer_decision(scan_start)

    def newest_batch_of_others(self, query_id: str) -> int | None:
        """See :class:`SinkCommitter`: Spark's own streaming writer records its batches."""
        with self._try("reading the batches of Spark's own writer"), self.step() as step:
            return newest_batch(step.table.metadata, query_id)

    def confirm(self, handles: Sequence[IcebergHandle], age_ms: float) -> None:
        """See :class:`FencedCommitter`: also that the table will take the files, because after the decision it must."""
        limit_ms = self._settings.orphan_age_ms / _SHARE_OF_ORPHAN_AGE
        if age_ms > limit_ms:
            raise CheckpointExpiredError(
                f"sink {self.name!r}: preparing took {age_ms:.0f} ms. Maintenance may delete files that no snapshot names and "
                f"that are older than orphan_age_ms={self._settings.orphan_age_ms}; a third of that is the limit. Nothing was "
                "decided. Write smaller batches, or let remove_orphan_files spare younger files and raise orphan_age_ms"
            )
        with self._try("confirming"), self.driving() as step:
            self._settings.require_supported(step.table)
            metadata = step.table.metadata
            now = (metadata.current_schema_id, metadata.default_spec_id)
            found = whole(step.table, handles)
        if any((handle.schema_id, handle.spec_id) != now for handle in handles):
            what = f"{self._settings.table} was altered while this batch was written"
            raise RetriableError(self._named(f"{what}. Nothing was decided, and a new attempt rewrites it"))
        for handle in (handle for handle, entries in found.items() if entries is None):
            what = f"{handle.transaction} is no longer whole. Nothing was decided, and a new attempt rewrites it"
            raise RetriableError(self._named(what))

    def commit(
        self, handles: Sequence[IcebergHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[IcebergHandle, Evidence]:
        """See :class:`FencedCommitter`."""
        found = super().commit(handles, scan_start)
        proven = (handle.entries_file for handle, evidence in found.items() if evidence is Evidence.COMMITTED)
        if done := [path for path in proven if path]:
            with contextlib.suppress(StoreError):
                table = self._store.load()
                for path in done:
                    delete(table, path)
        return found

    def prove(
        self, handles: Sequence[IcebergHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[IcebergHandle, Evidence]:
        """See :class:`FencedCommitter`: the tag's snapshot says what became of the newest decision."""
        try:
            with self.step() as step:
                self.load(step)
                published = step.tagged.published if step.tagged else Published()
        except self.failures as error:
            self._block(self.reason(error))
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        if published.version != version_of(scan_start):
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        asked = Counter(handle.attempt for handle in handles)
        return {handle: _evidence(published, handle, asked[handle.attempt]) for handle in handles}

    def abort(self, handles: Sequence[IcebergHandle]) -> None:
        """See :class:`FencedCommitter`."""
        with self._tidy("aborting"), self.driving() as step:
            for handle in handles:
                entries = entries_of(step.table, handle) or ()
                self._orphans.note(handle.transaction, [*(entry.path for entry in entries), handle.entries_file])
                self.roll_back(step, handle.transaction, self._highest_version)

    def recover_and_abort(self, decided: Collection[IcebergHandle]) -> None:
        """See :class:`FencedCommitter`."""
        self._orphans.spare((driver_epoch_of(handle.transaction, self.name), handle.batch) for handle in decided)
        super().recover_and_abort(decided)

    def forget(self, kept_scan_start: Mapping[str, Any]) -> None:
        """See :class:`FencedCommitter`: the tag has the outcome of no more than one decision."""

    def close(self) -> None:
        """See :class:`FencedCommitter`."""
        self._store.close()

    # -- the small parts ------------------------------------------------------------------------------------------------

    def _reserve(self, above: int) -> Control:
        """See :class:`FencedCommitter`: without a write, which would be a snapshot. No other driver has this driver's epoch."""
        with self.driving() as step:
            record = control.decode(self.load(step))
        return replace(record, version=max(above + 1, self._driver_epoch << _VERSIONS_OF_A_DRIVER))

    def _change(self, change: Callable[[Control], Control], then: Callable[[Step], None] = lambda _: None) -> Control:
        """See :class:`FencedCommitter`. Whether a swap has won is known when the step ends, so a lost one is repeated here."""
        for _ in range(_OVERTAKEN_ROUNDS):
            try:
                record = super()._change(change, then)
            except OvertakenError as error:
                logger.info("sink %r: %s; looking again", self.name, error)
            else:
                self._revision = max(self._revision, record.revision)
                return record
        raise StoreError(f"other drivers have moved the sink's tag {_OVERTAKEN_ROUNDS} times in a row")

    def _add(self, step: Step, handles: Sequence[IcebergHandle], published: Published) -> None:
        """Stage the files of transactions that are not settled yet. Those whose files are gone are lost.

        So are those whose schema or partitioning somebody has removed from the table, because no manifest can name them.
        """
        if not handles:
            return
        found = whole(step.table, handles)
        for handle in handles:
            if not has_definitions(step.table, handle.schema_id, handle.spec_id):
                found[handle] = None
        added = self._added_already(step, found)
        for handle, entries in found.items():
            if missing := [entry for entry in entries or () if entry.path not in added]:
                step.additions.setdefault((handle.schema_id, handle.spec_id), []).extend(missing)
        step.published = replace(
            published,
            attempts={**published.attempts, **Counter(handle.attempt for handle in handles)},
            lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),
        )

    def _added_already(self, step: Step, found: Mapping[IcebergHandle, list[Entry] | None]) -> set[str]:
        """The files that are in the table, although the tag's record does not say so: somebody has made the tag anew.

        Only a start can meet this: a running driver knows its own record.
        """
        former = [one for one in found if driver_epoch_of(one.transaction, self.name) != self._driver_epoch]
        paths = {entry.path for handle in former for entry in found[handle] or ()}
        return added_already(step.table, paths) if paths else set()


def _evidence(published: Published, handle: IcebergHandle, asked: int) -> Evidence:
    if asked > published.attempts.get(handle.attempt, 0):
        return Evidence.UNKNOWN
    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED
