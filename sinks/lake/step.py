"""Run one step of the driver. The step reads the table once, and makes all changes in one atomic commit at its end."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.layout import is_entries_file
from twopc.sinks.lake.prepared import require_whole
from twopc.sinks.lake.view import View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.sinks.lake.published import Published

logger = logging.getLogger(__name__)

ViewT = TypeVar("ViewT", bound=View[Any])
SeenT = TypeVar("SeenT")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0


class LakeStep(ABC, Generic[ViewT, SeenT]):
    """Runs one step of the driver. A subclass supports one table format.

    The table stores one value for the sink: a pointer in Delta's log, or a tag in an Iceberg table. This value points to
    the sink's record, and a commit moves the value by compare-and-set. So a step is valid until the value moves.

    Args:
        sink: the sink name.
        view: the table's state when it was read.

    Attributes:
        control: the control record that the step writes; None if the step does not change it.
        published: the outcome that the step writes; None if the step does not change it.
        additions: by transaction, the files that the step adds to the table; None if the step publishes no batch.
    """

    def __init__(self, sink: str, view: ViewT) -> None:
        self.sink = sink
        self.view = view
        self.control: bytes | None = None
        self.published: Published | None = None
        self.additions: Mapping[Any, list[Any]] | None = None

    def end(self, timeout_ms: float) -> None:
        """Commit the step's changes, if any.

        If another writer commits first, the step tries again. It also repeats a commit if the store does not respond. Before
        each repetition, it checks that the added files still exist: the caller has checked them before the first try. The
        sink's value moves by compare-and-set, so at most one attempt to commit takes effect, even if an attempt arrives late.

        Raises:
            OvertakenError: another driver has moved the sink's value.
            StoreError: the store rejected commits, or did not respond, until the timeout. The outcome is unknown. Or files were
            deleted between two tries.
        """
        if self.control is None and self.published is None:
            return
        ends_at, pause_s = time.monotonic() + timeout_ms / 1000, _FIRST_PAUSE_S
        while True:
            failure = self.commit()
            if failure is None:
                break
            is_last = time.monotonic() >= ends_at
            if not is_last:
                logger.info(
                    "sink %r: a commit was rejected or received no response. Trying again. Cause: %s",
                    self.sink,
                    failure,
                )
                # Pause before reading the table, so that other writers have little time to overtake the next try.
                time.sleep(random.uniform(0.5, 1) * pause_s)  # noqa: S311 - not a secret
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if self.catch_up(self._look(failure, ends_at), failure):
                break
            if is_last:
                raise failure
            if self.additions:
                require_whole(self.view.files, self.additions)
        self.tidy()
        self._delete_lists()

    def _look(self, failure: StoreError, ends_at: float) -> SeenT:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self.look()
            except StoreError:
                if time.monotonic() >= ends_at:
                    raise failure from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _delete_lists(self) -> None:
        """After the commit of a new decision, delete the file lists that the tasks of earlier decisions wrote.

        If a machine crash now loses the previous decision's commit, it also loses this newer commit. So nothing needs these
        lists any longer.
        """
        if self.published is None:
            return
        before, files = self.view.outcome, self.view.files
        if before.version == self.published.version:
            return
        with contextlib.suppress(StoreError):
            for where in (*before.lists, *before.former_lists):
                for name in filter(is_entries_file, files.listed(where)):
                    files.delete(f"{where}/{name}")

    # -- implemented for each format --------------------------------------------------------------------------------------

    @abstractmethod
    def commit(self) -> StoreError | None:
        """Try once to commit on top of the last version that the step has read. Return the failure, or None.

        Raises:
            StoreError: the commit could not be sent.
        """

    @abstractmethod
    def look(self) -> SeenT:
        """Read the table again after a failure.

        Raises:
            StoreError: the store did not respond. The caller tries again.
        """

    @abstractmethod
    def catch_up(self, seen: SeenT, failure: StoreError) -> bool:
        """Prepare the next try for the table's new version. Return True if an earlier try took effect after all.

        Raises:
            OvertakenError: another driver has moved the sink's value.
            StoreError: the table was recreated.
        """

    @abstractmethod
    def tidy(self) -> None:
        """After the commit, delete files that no decided batch needs. Do not raise an exception."""
