"""Store the decision log without Kafka, in write-once registers in a directory.

The log needs only one primitive: put-if-absent. The file ``registers/<20 digits>`` contains all records from one
:meth:`RegisterLog.append`; the file's number is the records' offset. The driver that writes the next register owns the
log. A driver that finds its next register occupied is fenced and stops. Two rules make this safe:

* After a write with an unknown outcome, the driver reads the register back. Each write contains a unique id, so if the
  register contains exactly the driver's bytes, the write succeeded. However, if the directory could not be synced, the
  bytes prove nothing, because the file's name may vanish in a power failure. A driver reads records, but acts on them
  only after its own record is in the directory and synced.
* While a driver is paused, other drivers may write *and delete* its next register, so the register looks free.
  A truncation record is durable before any register is deleted, and the newest register is never deleted. Therefore,
  after a driver has written a register, it reads all newer registers. If one of them records a truncation that covers
  the new register, the driver removes that register.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from twopc import register_id
from twopc.crash_points import crash_point
from twopc.decision_log import DecisionLog
from twopc.errors import ConfigurationError, DecisionInDoubtError, FatalError, RetriableError, release
from twopc.files import NotDurableError
from twopc.records import Acquired, Decision, Repair
from twopc.register_reader import Own, RegisterReader, file_of, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import Claim
    from twopc.files import Files
    from twopc.records import LogContents, Record

logger = logging.getLogger(__name__)

#: A claimant tries this many registers in a row, because the driver that it fences may keep appending. No query writes that many
#: registers in the meantime, so the tries run out only if the file system rejects every name.
_CLAIMS: Final = 100


def require_atomic(files: Files) -> None:
    """Check that these files can store the decisions. The decisions require an atomic put-if-absent.

    Raises:
        ConfigurationError: two drivers could both decide.
    """
    if not files.is_atomic:
        raise ConfigurationError(
            f"{files.location}: none of this query's sinks keeps the decisions, so the checkpoint would have to keep them. "
            "However, the checkpoint's file system may overwrite an existing file, so two drivers could both decide the same "
            "batch. Nothing was written. Add a Kafka sink to the query (its ledger keeps the decisions), or use a checkpoint "
            "on a local or shared POSIX path or on HDFS"
        )


class RegisterLog(DecisionLog):
    """Stores decisions in write-once registers, on any file system with put-if-absent.

    The log fences drivers that use the same checkpoint. A *copied* checkpoint has its own registers, so only the sinks can fence
    its driver (see ``docs/protocol.md``).
    """

    name = "registers"

    def __init__(self, files: Files) -> None:
        self._files = files
        self._reader = RegisterReader(files)
        self._own: Own | None = None

    def identity(self) -> str:
        """See :class:`DecisionLog`. The id is empty until a driver acquires the log.

        In a bound checkpoint, the id is never empty.

        Raises:
            DecisionLogDamagedError: the file with the id is torn or altered.
        """
        return register_id.read_id(self._files)

    def inspect(self) -> LogContents:
        """See :class:`DecisionLog`."""
        return self._reader.contents(None)

    def acquire(self, claim: Claim) -> int:
        """See :class:`DecisionLog`. Writes this driver's record to the first free register."""
        if self._own is not None and self._own.run == claim.run:
            return self._own.driver_epoch
        record = Acquired.by_this_process(claim, int(time.time() * 1000))
        for _ in range(_CLAIMS):
            number = max(self._reader.numbers(), default=-1) + 1
            try:
                won = self._put(number, [record])
            except DecisionInDoubtError as error:
                # Even if the record was written, it only fences a driver and decides nothing, so no batch is in doubt.
                raise RetriableError(f"acquiring the decision log failed: {error}") from error
            if won:
                # The register comes first, because an id without registers means a damaged log rather than a new one.
                register_id.create_id(self._files)
                self._own = Own(claim.run, number, number)
                return number
        raise RetriableError(
            f"{self._reader.where()}: this driver could not acquire the decision log, because another "
            f"driver wrote the next register first, {_CLAIMS} times in a row. Nothing was written. Restart the query"
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
        """See :class:`DecisionLog`. Deletes the oldest registers first, so that the newest ones always remain."""
        try:
            for number in self._reader.numbers():
                if number < log_start:
                    self._files.remove(file_of(number))
        except Exception as error:  # noqa: BLE001 - a file system may raise anything; the next truncation retries
            logger.warning(
                "%s: the registers below %d could not be deleted. The next truncation will try to delete them again. Cause: %s",
                self._reader.where(),
                log_start,
                error,
            )
            release(error)

    def close(self) -> None:
        """See :class:`DecisionLog`. This log does not keep any connections open."""

    def _put(self, number: int, records: Sequence[Record]) -> bool:
        """Write a register. Returns False if another driver has written this register.

        Raises:
            RetriableError: nothing was written.
            DecisionInDoubtError: the outcome is unknown.
        """
        data = packed(records)
        failure: Exception | None = None
        try:
            written = self._files.put_if_absent(file_of(number), data)
            if any(isinstance(record, (Decision, Repair)) for record in records):
                crash_point("driver.deciding")
        except FatalError:  # this error proves that nothing was written
            raise
        except Exception as error:  # noqa: BLE001 - a file system may raise anything, and the outcome is unknown
            written, failure = False, error
        try:
            # If a client library retried, our own first try may have taken the name.
            found = data if written else self._files.read(file_of(number))
            dropped = found == data and self._reader.is_dropped(number)
        except Exception as error:
            raise DecisionInDoubtError(
                f"{self._reader.where(number)}: this decision may or may not have been written ({failure or error}). No data "
                "is lost. Restart the query when the file system responds. The query will then find out whether the "
                "decision was written"
            ) from error
        if found == data and isinstance(failure, NotDurableError):
            raise DecisionInDoubtError(
                f"{self._reader.where(number)} was written but could not be made durable ({failure}). A power failure may "
                "remove it, so nothing was committed. No data is lost. Restart the query when the file system is healthy. "
                "The query will then find out whether the decision still exists"
            ) from failure
        if found is None and failure is not None:
            raise RetriableError(f"{self._reader.where(number)} could not be written: {failure}") from failure
        if dropped:
            with contextlib.suppress(Exception):  # no reader reads below a recorded truncation
                self._files.remove(file_of(number))
        return found == data and not dropped

    def _require_own(self) -> Own:
        if self._own is None:
            raise AssertionError("acquire() must be called first")
        return self._own
