"""The driver's side of the Delta sink: one commit adds a whole batch."""

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
from twopc.sinks.delta.errors import OvertakenError, StoreError, explained, reason
from twopc.sinks.delta.handle import DeltaHandle
from twopc.sinks.delta.objections import find_objections, retention_ms
from twopc.sinks.delta.orphans import Orphans
from twopc.sinks.delta.prepared import entries_of, find_misfit, require_whole, whole
from twopc.sinks.delta.record import Published, newest_transaction
from twopc.sinks.delta.step import Step
from twopc.sinks.delta.table import definition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from deltalake import DeltaTable

    from twopc.control import Control
    from twopc.errors import TwoPhaseCommitError
    from twopc.sinks.delta.settings import DeltaSettings

logger = logging.getLogger(__name__)

#: A driver's versions are above those of every former driver, so that nobody else reserves the same one.
_VERSIONS_OF_A_DRIVER: Final = 32
_OVERTAKEN_ROUNDS: Final = 20
#: A batch must be in the table long before VACUUM may take its files for garbage.
_SHARE_OF_RETENTION: Final = 3


class DeltaCommitter(FencedCommitter[DeltaHandle, Step]):
    """See :class:`FencedCommitter`.

    The control record is in the record that the sink's pointer names, together with the outcome of the newest decision. A commit
    adds the batch's files and moves the pointer, so the two never differ.
    """

    failures = (StoreError,)

    def __init__(self, settings: DeltaSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._store = settings.store()
        self._orphans = Orphans(self._store, settings.name)
        self._id = ""
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
        self._settings.require_supported(definition_of(step.table))

    def load(self, step: Step) -> bytes | None:
        """See :class:`FencedCommitter`."""
        found = str(step.table.metadata().id)
        if self._id not in {"", found}:
            raise StoreError(
                f"{self._settings.table_uri} was deleted and created again, so the rows of earlier batches are gone",
                ConfigurationError,
                "Restore the former table; or use a new checkpoint and a new sink name",
            )
        self._id = found
        stored = step.control or (bytes(step.record.control) if step.record else None)
        if control.decode(stored).revision < self._revision:
            raise StoreError(
                f"{self._settings.table_uri} was restored to an older state while this driver was running",
                ConfigurationError,
                "Restore the newer state; or use a new checkpoint and a new sink name",
            )
        return stored

    def swap(self, step: Step, old: bytes | None, new: bytes) -> bool:
        """See :class:`FencedCommitter`: takes effect when the step ends, if the pointer has not moved since it began."""
        del old
        step.control = new
        return True

    def is_prepared(self, step: Step, handle: DeltaHandle) -> bool:
        """See :class:`FencedCommitter`."""
        del step
        return whole(self._store, [handle])[handle] is not None

    def publish(self, step: Step, handle: DeltaHandle, version: int) -> None:
        """See :class:`FencedCommitter`."""
        list(self.publish_all(step, [handle], version))

    def publish_all(self, step: Step, handles: Sequence[DeltaHandle], version: int) -> Iterator[DeltaHandle]:
        """See :class:`FencedCommitter`: all transactions with one commit."""
        published = step.outcome
        if control.decode(self.load(step)).decided == version and version >= published.version:
            if published.version != version:
                published = Published(version=version)
            # Of a repair's files, those of the repairing driver: a sweep takes what is in a later place for orphans.
            places = ((driver_epoch_of(one.transaction, self.name) or 0, one.batch) for one in handles)
            epoch, batch = max((published.epoch, published.batch), *places)
            published = replace(published, epoch=epoch, batch=batch)
            self._add(step, [handle for handle in handles if handle.attempt not in published.attempts], published)
        yield from handles

    def outcome(self, step: Step, handle: DeltaHandle) -> Evidence:
        """See :class:`FencedCommitter`: what is known without the decision's version, see :meth:`prove`."""
        del step, handle
        return Evidence.UNKNOWN

    def roll_back(self, step: Step, transaction: str, version: int) -> None:
        """See :class:`FencedCommitter`. Files are never written again under the same name, so nothing else is needed."""
        del step, version
        for path in self._orphans.take(transaction):
            self._store.delete(path)

    def pending(self, step: Step) -> list[str]:
        """See :class:`FencedCommitter`."""
        return self._orphans.find(step.record, self._driver_epoch)

    # -- for callers ----------------------------------------------------------------------------------------------------

    def binding(self) -> Mapping[str, str]:
        """See :class:`FencedCommitter`: also the table, which is another one if somebody creates it anew."""
        bound = super().binding()
        return {**bound, "table": self._id}

    def has_newer_decision(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`FencedCommitter`.

        Raises:
            RefusedStartError: the table is older than the checkpoint.
        """
        known = scan_start or NO_ATTEMPT
        with self._try("reading its newest decision"), self.step() as step:
            record = control.decode(self.load(step))
            newest = max(record.decided, step.outcome.version)
        if newest < decided_before(known) or record.driver_epoch < version_of(known) >> _VERSIONS_OF_A_DRIVER:
            raise RefusedStartError(
                f"sink {self.name!r}: {self._settings.table_uri} is older than this checkpoint: its log no longer has batches "
                "that were in it. Somebody has restored an older copy of its files. Nothing was written. Restore the "
                "newer state of the table; or use a new checkpoint and a new sink name",
                case="older table",
            )
        return super().has_newer_decision(scan_start)

    def newest_batch_of_others(self, query_id: str) -> int | None:
        """See :class:`SinkCommitter`: Spark's own writer makes each batch an application transaction (``DeltaSink.scala``)."""
        with self._try("reading the batches of Spark's own writer"), self.step() as step:
            return newest_transaction(step.table, query_id)

    def confirm(self, handles: Sequence[DeltaHandle], age_ms: float) -> None:
        """See :class:`FencedCommitter`: also that the table will take the files, because after the decision it must."""
        with self._try("confirming"), self.driving() as step:
            table = definition_of(step.table)
            self._settings.require_supported(table)
            self._require_young(age_ms, table.configuration)
            found = whole(self._store, handles)
        if any(handle.table != table.fingerprint for handle in handles):
            what = f"{self._settings.table_uri} was altered while this batch was written"
            raise RetriableError(self._named(f"{what}. Nothing was decided, and a new attempt rewrites it"))
        for handle in (handle for handle, entries in found.items() if entries is None):
            what = f"{handle.transaction} is no longer whole. Nothing was decided, and a new attempt rewrites it"
            raise RetriableError(self._named(what))

    def commit(self, handles: Sequence[DeltaHandle], scan_start: Mapping[str, Any]) -> Mapping[DeltaHandle, Evidence]:
        """See :class:`FencedCommitter`."""
        found = super().commit(handles, scan_start)
        done = [handle.entries_file for handle, evidence in found.items() if evidence is Evidence.COMMITTED]
        with contextlib.suppress(StoreError):
            for path in filter(None, done):
                self._store.delete(path)
        return found

    def prove(self, handles: Sequence[DeltaHandle], scan_start: Mapping[str, Any]) -> Mapping[DeltaHandle, Evidence]:
        """See :class:`FencedCommitter`: the record says what became of the newest decision."""
        try:
            with self.step() as step:
                self.load(step)
                published = step.outcome
        except self.failures as error:
            self._block(self.reason(error))
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        if published.version != version_of(scan_start):
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        asked = Counter(handle.attempt for handle in handles)
        return {handle: _evidence(published, handle, asked[handle.attempt]) for handle in handles}

    def abort(self, handles: Sequence[DeltaHandle]) -> None:
        """See :class:`FencedCommitter`."""
        with self._tidy("aborting"), self.driving() as step:
            for handle in handles:
                entries = entries_of(self._store, handle) or ()
                self._orphans.note(handle.transaction, [*(entry.path for entry in entries), handle.entries_file])
                self.roll_back(step, handle.transaction, self._highest_version)

    def recover_and_abort(self, decided: Collection[DeltaHandle]) -> None:
        """See :class:`FencedCommitter`."""
        self._orphans.spare((driver_epoch_of(handle.transaction, self.name), handle.batch) for handle in decided)
        super().recover_and_abort(decided)

    def forget(self, kept_scan_start: Mapping[str, Any]) -> None:
        """See :class:`FencedCommitter`: the record has the outcome of no more than one decision."""

    def close(self) -> None:
        """See :class:`FencedCommitter`."""
        self._store.close()

    # -- the small parts ------------------------------------------------------------------------------------------------

    def _reserve(self, above: int) -> Control:
        """See :class:`FencedCommitter`: without a write, which would be a commit. No other driver has this driver's epoch."""
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
        raise StoreError(f"other drivers have moved the sink's pointer {_OVERTAKEN_ROUNDS} times in a row")

    def _add(self, step: Step, handles: Sequence[DeltaHandle], published: Published) -> None:
        """Stage the files of transactions that are not settled yet. Those whose files are gone are lost."""
        if not handles:
            return
        found = whole(self._store, handles)
        kept = [handle for handle in handles if found[handle] is not None]
        step.additions = [entry for handle in kept for entry in found[handle] or ()]
        step.require_fit = lambda table: self._require_fit(table, kept, found)
        step.require_whole = lambda: require_whole(self._store, kept)
        step.published = replace(
            published,
            attempts={**published.attempts, **Counter(handle.attempt for handle in handles)},
            lost=(*published.lost, *(handle.transaction for handle, entries in found.items() if entries is None)),
        )

    def _require_fit(
        self, table: DeltaTable, handles: Sequence[DeltaHandle], found: Mapping[DeltaHandle, list[Any] | None]
    ) -> None:
        """Require that the table can take decided files, even if somebody has altered it since.

        Raises:
            StoreError: it cannot.
        """
        definition = definition_of(table)
        for objection in find_objections(definition):
            raise StoreError(f"{self._settings.table_uri} {objection}", ConfigurationError)
        for handle in handles:
            if handle.table == definition.fingerprint:
                continue
            for entry in found[handle] or ():
                if misfit := find_misfit(self._store, entry, definition):
                    raise StoreError(
                        f"{self._settings.table_uri} was altered after the batch was decided, and cannot take its rows: {misfit}",
                        ConfigurationError,
                        "Undo the change (RESTORE TABLE), and restart the query",
                    )

    def _require_young(self, age_ms: float, configuration: Mapping[str, str]) -> None:
        limit_ms = (retention_ms(configuration) or 0) / _SHARE_OF_RETENTION
        if age_ms > limit_ms:
            raise CheckpointExpiredError(
                f"sink {self.name!r}: preparing took {age_ms:.0f} ms. VACUUM may delete files that no version names once they "
                f"are older than delta.deletedFileRetentionDuration; a third of that, {limit_ms:.0f} ms, is the limit. Nothing "
                "was decided. Write smaller batches, or raise delta.deletedFileRetentionDuration"
            )


def _evidence(published: Published, handle: DeltaHandle, asked: int) -> Evidence:
    if asked > published.attempts.get(handle.attempt, 0):
        return Evidence.UNKNOWN
    return Evidence.ABORTED if handle.transaction in published.lost else Evidence.COMMITTED
