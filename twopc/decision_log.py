"""The one interface of the place where decisions are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import Claim
    from twopc.records import LogContents, Record


class DecisionLog(ABC):
    """Where decisions are kept. One driver at a time may write: the store itself fences every other."""

    name: str

    @abstractmethod
    def identity(self) -> str:
        """An id of the store that changes when it is made anew (rule 11). Read-only."""

    @abstractmethod
    def inspect(self) -> LogContents:
        """Everything visible now, without fencing anybody. May be stale: act on :meth:`read` only.

        Raises:
            DecisionLogDamagedError: a record is torn or altered.
        """

    @abstractmethod
    def acquire(self, claim: Claim) -> int:
        """Fence the former driver and leave a record. Repeating it in the same run returns the same incarnation.

        Raises:
            FencedError: somebody else took over in the meantime.
        """

    @abstractmethod
    def read(self) -> LogContents:
        """Everything up to this driver's own record (rule 1): nobody can add to it any more.

        Raises:
            DecisionLogDamagedError: a record is torn or altered, or the own record cannot be read back.
            FencedError: somebody else took over in the meantime.
        """

    @abstractmethod
    def append(self, records: Sequence[Record]) -> int:
        """Write records, all or none. Returning is the proof that they are durable.

        Returns:
            the position of the first.

        Raises:
            FencedError: another driver took over; nothing was written.
            RetriableError: nothing was written.
            DecisionInDoubtError: no answer: they may or may not be there (rule 12). Do not decide again.
        """

    @abstractmethod
    def truncate(self, log_start: int) -> None:
        """Drop what lies below ``log_start``. Best effort, raises nothing."""

    @abstractmethod
    def close(self) -> None:
        """Release connections."""
