"""Base classes of committers for stores with atomic steps, such as transactions or locks.

A subclass defines how to commit one transaction.

The owner check and the change happen in one step. A fenced driver can therefore make no further changes, even if it was
paused.
"""

from __future__ import annotations

import logging
import re
import uuid
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_exponential

from twopc.attempt import Evidence, HandleT
from twopc.control_committer import ControlCommitter, StepT
from twopc.crash_points import crash_point
from twopc.errors import RetriableError, release
from twopc.versions import NO_ATTEMPT, version_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from twopc.attempt import TaskAttempt
    from twopc.control import Control
    from twopc.observation import Observation


logger = logging.getLogger(__name__)

_BACKOFF: Final = wait_exponential(0.05, max=5)


@dataclass(frozen=True)
class Prepared:
    """The handle for a sink whose driver identifies a transaction by its name alone.

    Attributes:
        transaction: the name, from :func:`transaction_name`.
        rows: how many rows the task wrote.
    """

    transaction: str
    rows: int


def transaction_name(sink: str, task: TaskAttempt) -> str:
    """Create a name that is never used twice, even by two attempts at the same task (rules 6 and 13).

    The name consists of the sink name, digits, the letters ``a`` to ``f``, and ``-``.
    """
    return f"{sink}-{task.driver_epoch}-{uuid.uuid4().hex}"


def driver_epoch_of(transaction: str, sink: str) -> int | None:
    """Return the driver epoch from a name that :func:`transaction_name` created for this sink.

    Return None for any other name.
    """
    found = re.fullmatch(f"{re.escape(sink)}-([0-9]+)-[0-9a-f]{{32}}", transaction)
    return int(found[1]) if found else None


class StepCommitter(ControlCommitter[HandleT, StepT], Generic[HandleT, StepT]):
    """See :class:`ControlCommitter`. A handle's ``transaction`` must be a name from :func:`transaction_name`.

    One step commits the entire batch. If the step is a store transaction, the entire batch becomes visible to readers
    at the same instant. A subclass defines how to confirm and prove a transaction; :class:`FencedCommitter` uses
    markers.
    """

    # -- the store's hooks ----------------------------------------------------------------------------------------------

    @abstractmethod
    def publish_all(self, step: StepT, handles: Sequence[HandleT], version: int) -> Iterator[HandleT]:
        """Make the rows of decided transactions visible, and yield each handle once its transaction is published.

        This method is called again after a crash.

        Args:
            step: the owner's step.
            handles: all of a decision's transactions.
            version: the decision's version.
        """

    @abstractmethod
    def is_complete(self, step: StepT, handles: Sequence[HandleT], version: int) -> bool:
        """Whether the step's changes, if they take effect, prove that the store contains all of these transactions.

        Args:
            step: the step in which :meth:`publish_all` has just published.
            handles: all of a decision's transactions.
            version: the decision's version.
        """

    @abstractmethod
    def roll_back(self, step: StepT, transaction: str, version: int) -> None:
        """Remove an unpublished transaction, so that its task can no longer prepare it.

        Args:
            step: the owner's step.
            transaction: the transaction name.
            version: the highest version so far.
        """

    @abstractmethod
    def pending(self, step: StepT) -> Iterable[str]:
        """List the names of this sink's transactions that are neither published nor rolled back.

        The result may include the names of other sinks' transactions, so a subclass may list all names that begin with
        the sink name.
        """

    def is_passing(self, error: Exception) -> bool:
        """Whether a commit that failed with this error may succeed if it is repeated soon. The default is False."""
        del error
        return False

    @property
    def retry_ms(self) -> int:
        """How long a failed commit is repeated, in ms. The default suits a deadlock."""
        return 1_000

    # -- for callers ----------------------------------------------------------------------------------------------------

    def commit(self, handles: Sequence[HandleT], scan_start: Mapping[str, Any]) -> Mapping[HandleT, Evidence]:
        """See :class:`SinkCommitter`."""
        try:
            self._repeated(self._try_to_commit, handles, version_of(scan_start))
        except self.failures as error:
            release(error)
        return self.prove(handles, scan_start)

    def commit_once(self, handles: Sequence[HandleT], version: int) -> None:
        """Record a decision, publish its batch, and record that the batch is complete, all in one step.

        Raises:
            Exception: one of ``failures``; the outcome is unknown.
        """

        def publish(step: StepT) -> None:
            for _ in self.publish_all(step, handles, version):
                crash_point("driver.committing")
            if self.is_complete(step, handles, version):
                self._swapped(step, lambda record: self._with_proof(record, version))

        # The decision comes first: some stores cannot undo a step, and a start from an older checkpoint must see the decision.
        self._record_decision(version, publish)

    def abort(self, handles: Sequence[HandleT]) -> None:
        """See :class:`SinkCommitter`."""
        with self._tidy("aborting"), self.driving() as step:
            for handle in handles:
                self.roll_back(step, handle.transaction, self._highest_version)

    def recover_and_abort(self, decided: Collection[HandleT]) -> None:
        """See :class:`SinkCommitter`."""
        spared = {handle.transaction for handle in decided}
        with self._tidy("sweeping"):
            with self.driving() as step:
                orphans = [name for name in self.pending(step) if name not in spared and self._may_sweep(name)]
                if orphans:
                    crash_point("driver.sweeping")
                for name in orphans:
                    self.roll_back(step, name, self._highest_version)
            self._orphans_ended += len(orphans)

    def close(self) -> None:
        """See :class:`SinkCommitter`. By default, there are no connections to close."""

    def observed(
        self, step: StepT, record: Control, decided: Sequence[HandleT], scan_start: Mapping[str, Any]
    ) -> Observation:
        """See :class:`ControlCommitter`."""
        named = {handle.transaction for handle in decided}
        staged = {name for name in self.pending(step) if driver_epoch_of(name, self.name) is not None}
        found = super().observed(step, record, decided, scan_start)
        return replace(found, leftovers=tuple(sorted(staged - named)))

    def _try_to_commit(self, handles: Sequence[HandleT], version: int) -> None:
        self._blockers = []
        try:
            self.commit_once(handles, version)
        except self.failures as error:
            self._block(self.reason(error))
            release(error)
            logger.warning("sink %r: a commit failed. Cause: %s", self.name, self._blockers[-1])
            raise

    @property
    def _repeated(self) -> Retrying:
        # There is always a second attempt, even if the first one uses up all of the time without a response.
        is_over = stop_after_delay(self.retry_ms / 1000) & stop_after_attempt(2)
        return Retrying(retry=retry_if_exception(self._may_pass), stop=is_over, wait=_BACKOFF, reraise=True)

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, self.failures) and self.is_passing(error)

    def _may_sweep(self, transaction: str) -> bool:
        # In a store without atomic steps, only this check protects a successor's transactions.
        epoch = driver_epoch_of(transaction, self.name)
        return epoch is not None and epoch <= self._driver_epoch


class FencedCommitter(StepCommitter[HandleT, StepT], Generic[HandleT, StepT]):
    """See :class:`StepCommitter`. Each transaction has a marker in the store, which proves its outcome."""

    # -- the store's hooks ----------------------------------------------------------------------------------------------

    @abstractmethod
    def is_prepared(self, step: StepT, handle: HandleT) -> bool:
        """Whether the transaction is prepared and contains as many rows as the handle says.

        The check runs just before the decision.
        """

    @abstractmethod
    def publish(self, step: StepT, handle: HandleT, version: int) -> None:
        """Make a decided transaction's rows visible, together with a marker as proof.

        This method is called again after a crash.

        If the transaction is no longer prepared, it was already published or rolled back, and this method must do
        nothing.

        Args:
            step: the owner's step.
            handle: the transaction.
            version: the decision's version, for :meth:`forget_before`.
        """

    def publish_all(self, step: StepT, handles: Sequence[HandleT], version: int) -> Iterator[HandleT]:
        """Publish a batch, and yield each handle once its transaction is published.

        Override this method if one statement can publish the entire batch.
        """
        for handle in handles:
            self.publish(step, handle, version)
            yield handle

    def is_complete(self, step: StepT, handles: Sequence[HandleT], version: int) -> bool:
        """See :class:`StepCommitter`. Reads the markers."""
        del version
        return all(self.outcome(step, handle) is Evidence.COMMITTED for handle in handles)

    @abstractmethod
    def outcome(self, step: StepT, handle: HandleT) -> Evidence:
        """Read a transaction's outcome from its marker. A missing marker proves nothing, so the outcome is UNKNOWN."""

    @abstractmethod
    def roll_back(self, step: StepT, transaction: str, version: int) -> None:
        """Remove an unpublished transaction, and leave a marker, so that its task can no longer prepare it.

        Args:
            step: the owner's step.
            transaction: the transaction name.
            version: the highest version so far, for :meth:`forget_before`.
        """

    def forget_before(self, step: StepT, version: int) -> None:
        """Delete the markers with versions below ``version``, because their outcomes are no longer needed."""

    # -- for callers ----------------------------------------------------------------------------------------------------

    def confirm(self, handles: Sequence[HandleT], age_ms: float) -> None:
        """See :class:`SinkCommitter`."""
        del age_ms  # a store whose transactions expire overrides this method
        with self._try("confirming"), self.driving() as step:
            broken = next((handle for handle in handles if not self.is_prepared(step, handle)), None)
        if broken is not None:
            what = (
                f"{broken.transaction} is no longer complete. Nothing was decided. A new attempt will write this "
                "transaction's rows again"
            )
            raise RetriableError(self._named(what))

    def prove(self, handles: Sequence[HandleT], scan_start: Mapping[str, Any]) -> Mapping[HandleT, Evidence]:
        """See :class:`SinkCommitter`. Reads the markers."""
        del scan_start  # the transaction name is enough to find the transaction
        try:
            with self._looking() as step:  # if `load` takes a lock, it waits for a step whose response is still missing
                return {handle: self.outcome(step, handle) for handle in handles}
        except self.failures as error:
            self._block(self.reason(error))
            release(error)
            return dict.fromkeys(handles, Evidence.UNKNOWN)

    def forget(self, kept_scan_start: Mapping[str, Any]) -> None:
        """See :class:`SinkCommitter`."""
        with self._tidy("forgetting"), self.driving() as step:
            self.forget_before(step, version_of(kept_scan_start or NO_ATTEMPT))

    def observed(
        self, step: StepT, record: Control, decided: Sequence[HandleT], scan_start: Mapping[str, Any]
    ) -> Observation:
        """See :class:`ControlCommitter`. A transaction is lost if it has no marker and is no longer prepared."""
        found = super().observed(step, record, decided, scan_start)
        evidence = {handle: self.outcome(step, handle) for handle in decided}
        lost = (
            handle
            for handle, proof in evidence.items()
            if proof is Evidence.UNKNOWN and not self.is_prepared(step, handle)
        )
        return replace(found, evidence=evidence | dict.fromkeys(lost, Evidence.ABORTED))
