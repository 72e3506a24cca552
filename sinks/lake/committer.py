"""In the driver, commit batches to a lakehouse table. One commit adds all files of a batch."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from abc import abstractmethod
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from msgspec.structs import replace

from twopc import control
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError, FatalError, RefusedStartError, RetriableError, release
from twopc.fenced_committer import StepCommitter, driver_epoch_of
from twopc.new_checkpoint import NEW_NAME
from twopc.sinks.lake.entries import EntryT
from twopc.sinks.lake.errors import OvertakenError, StoreError, explained, reason
from twopc.sinks.lake.handle import HandleT
from twopc.sinks.lake.orphans import Orphans
from twopc.sinks.lake.prepared import entries_of, whole
from twopc.sinks.lake.published import Published, evidence_of, settle
from twopc.sinks.lake.renewal import old_files, renewed
from twopc.sinks.lake.step import LakeStep
from twopc.sinks.lake.versions import is_older, next_version
from twopc.versions import NO_ATTEMPT, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from twopc.control import Control
    from twopc.errors import TwoPhaseCommitError
    from twopc.observation import Observation
    from twopc.sinks.lake.history import History
    from twopc.sinks.lake.words import Words

logger = logging.getLogger(__name__)

StepT = TypeVar("StepT", bound=LakeStep[Any, Any])

_OVERTAKEN_ROUNDS: Final = 20


class LakeCommitter(StepCommitter[HandleT, StepT], Generic[HandleT, StepT, EntryT]):
    """See :class:`StepCommitter`. A subclass supports one table format.

    The table contains the control record and the newest decision's outcome. The commit that adds a batch's files also changes
    the record and the outcome, so all three always agree.

    Args:
        name: the sink's name.
        table: the table's name in error messages.
        timeout_ms: how long to repeat a failing commit, including the reads that it needs.
        entry: the class of the handles' entries.
    """

    failures = (StoreError,)
    words: ClassVar[Words]

    def __init__(self, name: str, table: str, timeout_ms: int, entry: type[EntryT]) -> None:
        super().__init__(name)
        self._table = table
        self._timeout_ms = timeout_ms
        self._entry = entry
        self._commit_ends_at = math.inf
        self._orphans = Orphans()
        self._table_id = ""

    # -- implemented for each format --------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> StepT:
        """Begin a step: read the table and the sink's record."""

    @abstractmethod
    def young_ms(self, step: StepT) -> float:
        """Return the age up to which maintenance is certain to spare uncommitted files, even if it starts a little later."""

    @abstractmethod
    def require_young(self, step: StepT, age_ms: float) -> None:
        """Check that there is time to commit a batch before maintenance may delete the batch's files as unused.

        Raises:
            CheckpointExpiredError: the batch's files are too old.
        """

    def require_addable(self, step: StepT, found: Mapping[HandleT, list[EntryT] | None]) -> None:
        """Before the decision, check that a commit can add the existing files to the table.

        Raises:
            StoreError: a commit would fail.
        """

    @abstractmethod
    def stage(self, step: StepT, found: Mapping[HandleT, list[EntryT] | None]) -> Mapping[HandleT, list[EntryT] | None]:
        """Stage the existing files. Return ``found``, with None for each transaction that can never be added."""

    def batches_in_table(self, step: StepT, batch_of: Callable[[str], int | None]) -> set[int]:
        """Return the batches in the table that may be newer than the sink's record. ``batch_of`` returns a file's batch.

        The default returns none, for a format whose log contains the files and also points to the record: neither can be set
        back alone.

        Raises:
            StoreError: the storage did not respond.
        """
        del step, batch_of
        return set()

    @abstractmethod
    def history(self, step: StepT) -> History | None:
        """Look up the sink's decisions in the table's history. Return None if the newest published batch is missing there."""

    # -- the store's hooks ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(self) -> Iterator[StepT]:
        """See :class:`StepCommitter`."""
        step = self.begin()
        yield step
        step.end(min(self._timeout_ms, 1000 * (self._commit_ends_at - time.monotonic())))

    def explain(self, error: Exception, what: str) -> TwoPhaseCommitError:
        """See :class:`StepCommitter`."""
        return explained(error, what)

    def reason(self, error: Exception) -> str:
        """See :class:`StepCommitter`."""
        return reason(error)

    def is_passing(self, error: Exception) -> bool:
        """See :class:`StepCommitter`. A failure that only a person can fix is not transient."""
        return not issubclass(getattr(error, "kind", FatalError), FatalError)

    @property
    def retry_ms(self) -> int:
        """See :class:`StepCommitter`. A read of the table may fail for as long as a commit, so the driver repeats both."""
        return self._timeout_ms

    def check_store(self, step: StepT) -> None:
        """See :class:`StepCommitter`."""
        step.view.require_supported()

    def load(self, step: StepT) -> bytes | None:
        """See :class:`StepCommitter`."""
        found = step.view.table_id
        if self._table_id not in {"", found}:
            raise StoreError(
                f"{self._table} {self.words.recreated}, so the table no longer contains earlier batches",
                ConfigurationError,
                f"Restore the previous table, or {NEW_NAME}",
            )
        self._table_id = found
        stored = step.control or step.view.stored
        if control.decode(stored).revision < self._revision:
            raise StoreError(
                f"{self._table} {self.words.restored}",
                ConfigurationError,
                "Restart the query first. If only the last batch is missing, the restart will add it again. If the query "
                f"refuses to start, restore the table's newer state, or {NEW_NAME}",
            )
        return stored

    def swap(self, step: StepT, old: bytes | None, new: bytes) -> bool:
        """See :class:`StepCommitter`. The swap takes effect at the end of the step, unless another driver commits first."""
        del old
        step.control = new
        return True

    def publish_all(self, step: StepT, handles: Sequence[HandleT], version: int) -> Iterator[HandleT]:
        """See :class:`StepCommitter`. One commit publishes all transactions."""
        published = step.view.outcome
        if control.decode(self.load(step)).decided == version and version >= published.version:
            if published.version != version:
                published = Published(version=version, former_lists=published.lists)
            # A repair may contain files from several drivers. The newest directory counts, because a sweep treats later files
            # as orphans.
            places = ((driver_epoch_of(one.transaction, self.name) or 0, one.batch) for one in handles)
            epoch, batch = max((published.epoch, published.batch), *places)
            published = replace(published, epoch=epoch, batch=batch)
            self._add(step, [handle for handle in handles if handle.attempt not in published.attempts], published)
        yield from handles

    def is_complete(self, step: StepT, handles: Sequence[HandleT], version: int) -> bool:
        """See :class:`StepCommitter`. The step's commit stores the outcome."""
        found = evidence_of(step.published or step.view.outcome, handles, version)
        return all(evidence is Evidence.COMMITTED for evidence in found.values())

    def roll_back(self, step: StepT, transaction: str, version: int) -> None:
        """See :class:`StepCommitter`. An abort only deletes the files, because no driver or task reuses a file name."""
        del version
        for path in self._orphans.take(transaction):
            step.view.files.delete(path)

    def pending(self, step: StepT) -> list[str]:
        """See :class:`StepCommitter`."""
        if step.view.stored is None:
            return []
        record = control.decode(step.view.stored)
        own_epoch = (
            self._driver_epoch if self._run else record.driver_epoch
        )  # a committer that only observes owns nothing
        root = step.view.root(record.id)
        check = partial(self._require_newest, step, root)
        return self._orphans.find(step.view.files, root, step.view.outcome, own_epoch, check)

    # -- for callers ----------------------------------------------------------------------------------------------------

    def binding(self) -> Mapping[str, str]:
        """See :class:`StepCommitter`. Add the table's id, which changes if the table is recreated."""
        bound = super().binding()
        return {**bound, "table": self._table_id}

    def lacks_decisions(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`StepCommitter`. The table has no reserved versions, so its published outcome counts instead.

        Raises:
            RefusedStartError: the table is older than the checkpoint.
        """
        with self._try("reading the table's newest decision"), self.step() as step:
            record = control.decode(self.load(step))
            is_behind = is_older(record, step.view.outcome, scan_start or NO_ATTEMPT)
        if is_behind:
            raise RefusedStartError(
                f"sink {self.name!r}: {self._table} is older than this checkpoint: {self.words.lost}. Nothing was written. "
                f"Restore the table's newer state, or {NEW_NAME}",
                case="older table",
            )
        return False

    def confirm(self, handles: Sequence[HandleT], age_ms: float) -> None:
        """See :class:`StepCommitter`. Also check that the table still accepts the files, because a decision is final."""
        with self._try("confirming"), self.driving() as step:
            step.view.require_supported()
            found = whole(step.view.files, handles, self._entry)
            self.require_young(step, max(age_ms, _oldest_ms(found)))
            was_altered = not all(step.view.is_current(handle) for handle in handles)
            if not was_altered:
                self.require_addable(step, found)
        if was_altered:
            what = f"{self._table} was altered while this batch was being written"
            raise RetriableError(self._named(f"{what}. Nothing was decided, and a new attempt will rewrite the batch"))
        for handle in (handle for handle, entries in found.items() if entries is None):
            what = (
                f"files of {handle.transaction} are missing or have been changed. Nothing was decided, and a new attempt will "
                "rewrite them"
            )
            raise RetriableError(self._named(what))

    def commit(self, handles: Sequence[HandleT], scan_start: Mapping[str, Any]) -> Mapping[HandleT, Evidence]:
        """See :class:`StepCommitter`. All attempts share one timeout."""
        self._commit_ends_at = time.monotonic() + self._timeout_ms / 1000
        try:
            return super().commit(handles, scan_start)
        finally:
            self._commit_ends_at = math.inf

    def notify_checkpoint_complete(
        self, batch_id: int, handles: Sequence[HandleT], scan_start: Mapping[str, Any]
    ) -> Mapping[HandleT, Evidence]:
        """See :class:`StepCommitter`."""
        self._orphans.complete(batch_id, has_rows=bool(handles))
        return super().notify_checkpoint_complete(batch_id, handles, scan_start)

    def prove(self, handles: Sequence[HandleT], scan_start: Mapping[str, Any]) -> Mapping[HandleT, Evidence]:
        """See :class:`StepCommitter`. Read the newest decision's outcome from the table."""
        try:
            with self._looking() as step:
                published = step.view.outcome
        except self.failures as error:
            self._block(self.reason(error))
            release(error)
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        return evidence_of(published, handles, version_of(scan_start))

    def abort(self, handles: Sequence[HandleT]) -> None:
        """See :class:`StepCommitter`."""
        with self._tidy("aborting"), self.driving() as step:
            for handle in handles:
                entries = entries_of(step.view.files, handle, self._entry) or ()
                self._orphans.note(handle.transaction, [*(entry.path for entry in entries), handle.entries_file])
                self.roll_back(step, handle.transaction, self._highest_version)

    def recover_and_abort(self, decided: Collection[HandleT]) -> None:
        """See :class:`StepCommitter`."""
        self._orphans.spare((driver_epoch_of(handle.transaction, self.name), handle.batch) for handle in decided)
        super().recover_and_abort(decided)

    def observed(
        self, step: StepT, record: Control, decided: Sequence[HandleT], scan_start: Mapping[str, Any]
    ) -> Observation:
        """See :class:`StepCommitter`."""
        found = super().observed(step, record, decided, scan_start)
        view, published = step.view, step.view.outcome
        evidence = evidence_of(published, decided, version_of(scan_start))
        waiting = [handle for handle, proof in evidence.items() if proof is Evidence.UNKNOWN]
        lost = [handle for handle, entries in whole(view.files, waiting, self._entry).items() if entries is None]
        found = dataclasses.replace(
            found,
            bound={**found.bound, "table": view.table_id},
            is_behind=is_older(record, published, scan_start),
            evidence=evidence | dict.fromkeys(lost, Evidence.ABORTED),
        )
        history = self.history(step)
        return found if history is None else history.added_to(found, self._table, published.batch)

    # -- helpers --------------------------------------------------------------------------------------------------------

    def renewed(self, step: StepT, added: Mapping[HandleT, list[EntryT]]) -> dict[HandleT, list[EntryT]]:
        """Replace files with copies if maintenance that is already running may delete them; see :mod:`.renewal`.

        Raises:
            StoreError: a file could not be copied.
        """
        since_ms = _now_ms() - self.young_ms(step)
        if old := old_files(chain.from_iterable(added.values()), since_ms):
            text = (
                "sink %r: %d files of batch %d are old, or their age is unknown. Table maintenance that is running now may "
                "delete them. No rows are at risk: the sink adds copies of these files to %s (%.0f MiB). Wait until the "
                "copies are complete"
            )
            size = sum(entry.size for entry in old) / 2**20
            logger.warning(text, self.name, len(old), max(handle.batch for handle in added), self._table, size)
        return renewed(step.view.files, added, since_ms)

    def _require_newest(self, step: StepT, root: str) -> None:
        """Check before a sweep that the table contains no later batches than the record, unless a log has decided them.

        Raises:
            RefusedStartError: the table contains later batches.
        """
        published = step.view.outcome
        if not self._run:  # an observer deletes nothing
            return
        newer = self.batches_in_table(step, lambda path: self._orphans.newer_batch(path, root, published))
        if newer:
            raise RefusedStartError(
                f"sink {self.name!r}: {self._table} contains rows of batch {max(newer)}, but the sink's record ends with batch "
                f"{published.batch}, because the sink's {self.words.moved} was set back. The sink would take the files of later "
                f"batches for orphans. No rows were deleted or written. To keep the rows, {NEW_NAME}",
                case="older table",
            )

    def _reserve(self, above: int) -> Control:
        """See :class:`StepCommitter`. Skip the write, because it would need a commit, and no other driver has this epoch."""
        with self.driving() as step:
            record = control.decode(self.load(step))
        return replace(record, version=next_version(above, self._driver_epoch))

    def _change(self, change: Callable[[Control], Control], then: Callable[[StepT], None] = lambda _: None) -> Control:
        """See :class:`StepCommitter`.

        If another driver has changed the record first, this step fails only when it ends. In that case, try again.
        """
        for _ in range(_OVERTAKEN_ROUNDS):
            try:
                return super()._change(change, then)
            except OvertakenError as error:
                logger.info("sink %r: %s. Trying again", self.name, error)
        raise StoreError(f"other drivers have moved the sink's {self.words.moved} {_OVERTAKEN_ROUNDS} times in a row")

    def _add(self, step: StepT, handles: Sequence[HandleT], published: Published) -> None:
        """Stage the files of unsettled transactions. A transaction whose files are missing is lost."""
        if handles:
            found = self.stage(step, whole(step.view.files, handles, self._entry))
            step.published = settle(published, found)


def _oldest_ms(found: Mapping[HandleT, list[EntryT] | None]) -> float:
    """Return the age of the oldest file; 0 without files.

    Maintenance measures this age. The driver's own measurement omits the time for which its machine was suspended.
    """
    now_ms = _now_ms()
    return max((now_ms - entry.modified_ms for entries in found.values() for entry in entries or ()), default=0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
