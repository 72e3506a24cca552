"""The interface for a decision log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import Claim
    from twopc.records import LogContents, Record


#: The id of a log that does not exist.
ABSENT: Final = "absent"
#: The id of a log whose store assigns no ids: the zero UUID. Brokers without topic ids report this UUID for every topic.
NO_ID: Final = "A" * 22


class DecisionLog(ABC):
    """Stores the decisions. Only one driver at a time can write; the store itself fences all others."""

    name: str
    cluster: str = ""  #: the id of the cluster that stores the log; empty if the log is not on a cluster

    @abstractmethod
    def identity(self) -> str:
        """Return the store's id, which changes when the store is recreated (rule 11). This method only reads.

        Return :data:`NO_ID` if the store has no such id. A later version of the store may assign one.
        """

    @abstractmethod
    def inspect(self) -> LogContents:
        """Read every record that is visible now, without fencing other drivers. The result may be stale.

        Before acting on the records, use :meth:`read`.

        Raises:
            DecisionLogDamagedError: a record is torn or altered.
        """

    @abstractmethod
    def acquire(self, claim: Claim) -> int:
        """Fence the previous driver, and write a record of this acquisition.

        Returns:
            this driver's epoch. A retry in the same run returns the same epoch.

        Raises:
            FencedError: a newer driver has acquired the log in the meantime.
        """

    @abstractmethod
    def read(self) -> LogContents:
        """Read every record up to this driver's own record (rule 1). No earlier driver can add records after this record.

        Raises:
            DecisionLogDamagedError: a record is torn or altered, or this driver's record cannot be read back.
            FencedError: a newer driver has acquired the log in the meantime.
        """

    def require_owner(self) -> None:
        """Prove that no newer driver has acquired the log yet.

        A start calls this method after it has acquired all sinks, and before it changes a transaction in any of them. By
        default, :meth:`read` is the proof. If a stale server could answer that read, the proof needs a write.

        Raises:
            FencedError: a newer driver has acquired the log; this driver has written nothing.
        """
        self.read()

    @abstractmethod
    def append(self, records: Sequence[Record]) -> int:
        """Write all of the records, or none. If this method returns without an error, the records are durable.

        Returns:
            the position of the first record.

        Raises:
            FencedError: a newer driver owns the log; nothing was written.
            RetriableError: nothing was written.
            FatalError: nothing was written, and this driver can no longer write.
            DecisionInDoubtError: no response arrived, so the records may or may not be in the log (rule 12). Do not decide again.
        """

    @abstractmethod
    def truncate(self, log_start: int) -> None:
        """Try to delete every record before ``log_start``. This method must not raise."""

    @abstractmethod
    def close(self) -> None:
        """Release connections."""
