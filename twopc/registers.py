"""The decision log without Kafka: write-once registers in a directory, with put-if-absent as the only primitive.

``registers/<20 digits>`` holds the records of one :meth:`RegisterLog.append`, all or none; its number is their offset.
The driver that writes the next number owns the log. A driver that finds this number taken is fenced and stops. Two rules make
that safe:

* After a write with an unknown outcome, the driver reads the register back. A write carries its own id, so equal bytes prove
  the write. If the directory's sync has failed, they prove nothing, because the name may vanish in a power failure. A driver
  acts on the records that it reads only once its own record is in the directory, and synced.
* While a driver was paused, others may have written its next register *and deleted it*, so that the register looks
  free. The truncation record is durable before the first register is deleted, and the newest register is never deleted.
  So a driver compares a register that it has just written with the newer ones, and removes it if it lies below a truncation.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from twopc import register_id
from twopc.decision_log import DecisionLog
from twopc.errors import ConfigurationError, DecisionInDoubtError, FatalError, RetriableError
from twopc.files import NotDurableError
from twopc.records import Acquired
from twopc.register_reader import Own, RegisterReader, file_of, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import Claim
    from twopc.files import Files
    from twopc.records import LogContents, Record

logger = logging.getLogger(__name__)

#: A claimant tries this many registers, one after another. The driver that it fences may keep appending, so the number is far
#: above the number of registers that a query writes in that time. Only a file system that refuses every name exhausts it.
_CLAIMS: Final = 100


def require_atomic(files: Files) -> None:
    """Check that these files can hold the decisions: only put-if-absent decides between two drivers.

    Raises:
        ConfigurationError: the files cannot hold them.
    """
    if not files.is_atomic:
        raise ConfigurationError(
            f"{files.location}: no sink of this query keeps the decisions, so they would be kept in the checkpoint. But its file "
            "system cannot create a file only where none exists, so two drivers could both decide. Nothing was written. Add a "
            "Kafka sink to the query, whose ledger keeps the decisions, or use a checkpoint on a local or shared POSIX path or "
            "on HDFS"
        )


class RegisterLog(DecisionLog):
    """Keeps decisions in write-once registers, on any file system with put-if-absent.

    The log fences drivers of the same checkpoint. A *copied* checkpoint has its own registers; the fence in the sinks stops
    its driver (see ``docs/protocol.md``).
    """

    name = "registers"

    def __init__(self, files: Files) -> None:
        self._files = files
        self._reader = RegisterReader(files)
        self._own: Own | None = None

    def identity(self) -> str:
        """See :class:`DecisionLog`. Empty until a driver acquires the log, so never empty in a bound checkpoint.

        Raises:
            DecisionLogDamagedError: the id's file is torn or altered.
        """
        return register_id.read_id(self._files)

    def inspect(self) -> LogContents:
        """See :class:`DecisionLog`."""
        return self._reader.contents(None)

    def acquire(self, claim: Claim) -> int:
        """See :class:`DecisionLog`. The first free register gets this driver's record."""
        if self._own is not None and self._own.run == claim.run:
            return self._own.driver_epoch
        record = Acquired.by_this_process(claim, int(time.time() * 1000))
        for _ in range(_CLAIMS):
            number = max(self._reader.numbers(), default=-1) + 1
            try:
                won = self._put(number, [record])
            except DecisionInDoubtError as error:
                # If the record was written after all, it only fences and decides nothing, so no batch is in doubt.
                raise RetriableError(f"acquiring the decision log failed: {error}") from error
            if won:
                # After the register: an id without registers is damage, not a new log.
                register_id.create_id(self._files)
                self._own = Own(claim.run, number, number)
                return number
        raise RetriableError(
            f"{self._reader.where()}: another driver wrote the next register first, {_CLAIMS} times in a row, so this driver "
            "could not acquire the decision log. Nothing was written; restart the query"
        )

    def read(self) -> LogContents:
        """See :class:`DecisionLog`."""
        return self._reader.contents(self._require_own())

    def append(self, records: Sequence[Record]) -> int:
        """See :class:`DecisionLog`."""
        own = self._require_own()
        number = own.last + 1
        if not self._put(number, records):
            raise self._reader.fenced(number)
        self._own = own._replace(last=number)
        return number

    def truncate(self, log_start: int) -> None:
        """See :class:`DecisionLog`. Deletes in ascending order, so that the newest registers always remain."""
        try:
            for number in self._reader.numbers():
                if number < log_start:
                    self._files.remove(file_of(number))
        except Exception as error:  # noqa: BLE001 - a file system may raise anything; the next truncation retries
            logger.warning(
                "%s: the registers below %d could not be deleted; the next truncation retries: %s",
                self._reader.where(),
                log_start,
                error,
            )

    def close(self) -> None:
        """See :class:`DecisionLog`. Has nothing to release."""

    def _put(self, number: int, records: Sequence[Record]) -> bool:
        """Write a register. Returns False if another driver has it.

        Raises:
            RetriableError: nothing was written.
            DecisionInDoubtError: the outcome is unknown.
        """
        data = packed(records)
        failure: Exception | None = None
        try:
            written = self._files.put_if_absent(file_of(number), data)
        except FatalError:  # the files themselves say that nothing was written
            raise
        except Exception as error:  # noqa: BLE001 - a file system may raise anything, and the outcome is unknown
            written, failure = False, error
        try:
            # The name may be taken by our own first try, if a client library has retried.
            found = data if written else self._files.read(file_of(number))
            dropped = found == data and self._reader.is_dropped(number)
        except Exception as error:
            raise DecisionInDoubtError(
                f"{self._reader.where(number)}: it is not known whether this decision was written ({failure or error}). No data "
                "is lost. Restart the query when the file system answers; it reads the outcome"
            ) from error
        if found == data and isinstance(failure, NotDurableError):
            raise DecisionInDoubtError(
                f"{self._reader.where(number)} was written but could not be made durable ({failure}). A power failure may "
                "remove it, so nothing was committed. No data is lost. Restart the query when the file system is healthy; it "
                "reads the outcome"
            ) from failure
        if found is None and failure is not None:
            raise RetriableError(f"{self._reader.where(number)} could not be written: {failure}") from failure
        if dropped:
            with contextlib.suppress(Exception):  # no reader looks below a recorded truncation
                self._files.remove(file_of(number))
        return found == data and not dropped

    def _require_own(self) -> Own:
        if self._own is None:
            raise AssertionError("acquire comes first")
        return self._own
