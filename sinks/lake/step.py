"""Run one step of the driver: it reads the table once, and one atomic commit at its end makes all its changes."""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.view import View

if TYPE_CHECKING:
    from twopc.sinks.lake.published import Published

logger = logging.getLogger(__name__)

ViewT = TypeVar("ViewT", bound=View[Any])
SeenT = TypeVar("SeenT")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0


class LakeStep(ABC, Generic[ViewT, SeenT]):
    """See above.

    The table keeps one value for the sink: a pointer in Delta's log, or a tag of an Iceberg table. All of the sink's other facts
    follow from it, and a commit moves it by compare-and-set. So a step is valid until somebody moves that value.

    Args:
        sink: the sink's name.
        view: the table as it was read.

    Attributes:
        control: the control record that the step writes; None if it changes none.
        published: the outcome that the step writes; None if it changes none.
    """

    def __init__(self, sink: str, view: ViewT) -> None:
        self.sink = sink
        self.view = view
        self.control: bytes | None = None
        self.published: Published | None = None

    def end(self, timeout_ms: int) -> None:
        """Commit the step's changes, if there are any.

        If others commit in between, the step tries again. It also repeats a commit that had no answer. The sink's value moves by
        compare-and-set, so at most one of the tries takes effect, however late.

        Raises:
            OvertakenError: another driver has moved the sink's value.
            StoreError: the store has refused or not answered for too long. The outcome is unknown.
        """
        if self.control is None and self.published is None:
            return
        ends_at, pause_s = time.monotonic() + timeout_ms / 1000, _FIRST_PAUSE_S
        while True:
            failure = self.commit()
            if failure is None or self.catch_up(self._look(failure, ends_at), failure):
                break
            if time.monotonic() >= ends_at:
                raise failure
            logger.info("sink %r: a commit was refused or had no answer; trying again: %s", self.sink, failure)
            time.sleep(random.uniform(0.5, 1) * pause_s)  # noqa: S311 - not a secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self.tidy()

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

    # -- implemented for each format --------------------------------------------------------------------------------------

    @abstractmethod
    def commit(self) -> StoreError | None:
        """Try once to commit, on top of the version that the step has read last; return the failure.

        Raises:
            StoreError: the commit cannot be tried.
        """

    @abstractmethod
    def look(self) -> SeenT:
        """Read the table again after a failure.

        Raises:
            StoreError: the store did not answer. The caller looks again.
        """

    @abstractmethod
    def catch_up(self, seen: SeenT, failure: StoreError) -> bool:
        """Prepare the next try for the table's new version; return whether an earlier try took effect after all.

        Raises:
            OvertakenError: another driver has moved the sink's value.
            StoreError: somebody has recreated the table.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Delete files that nobody needs after the commit. Raises nothing, because no decided batch depends on them."""
