"""The decision log without Kafka: write-once registers in a directory, with put-if-absent as the only primitive.

``registers/<20 digits>`` holds the records of one :meth:`RegisterLog.append`, all or none; its number is their offset.
The driver that writes the next number owns the log; a driver that finds it taken is fenced and stops. Two rules make
that safe:

* After a write with an unknown outcome, the register is read back. A write carries its own id, so equal bytes prove it. If the
  directory's sync has failed, they prove nothing: the name may be gone after a power failure. A driver acts on what it reads only
  once its own record is in the directory, and synced.
* While a driver was paused, its next register may have been written *and deleted*, so that it looks
  free. The truncation record is durable before the first register is deleted, and the newest register is never deleted.
  So a register that was just written is checked against the newer ones, and removed if it lies below a truncation.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twopc import register_id
from twopc.decision_log import DecisionLog
from twopc.errors import (
    ConfigurationError,
    DecisionInDoubtError,
    DecisionLogDamagedError,
    FatalError,
    FencedError,
    RetriableError,
)
from twopc.files import NotDurableError
from twopc.records import Acquired, Entries, LogContents, LogEntry, Record, truncated_to
from twopc.sealed import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.attempt import Claim
    from twopc.files import Files

logger = logging.getLogger(__name__)

FORMAT: Final = "twopc-register/1"
_DIRECTORY: Final = "registers"
_NUMBER: Final = re.compile(r"[0-9]{20}")
#: How many times a reader starts again because a driver appended or truncated meanwhile.
_TRIES: Final = 8
#: How many times a claimant tries the next register after losing one. The driver that it fences may keep appending, so this
#: is far more than a query writes in that time; it ends only where a file system refuses every name.
_CLAIMS: Final = 100


def require_atomic(files: Files) -> None:
    """Check that these files can hold the decisions: only put-if-absent decides between two drivers.

    Raises:
        ConfigurationError: they cannot.
    """
    if not files.is_atomic:
        raise ConfigurationError(
            f"{files.location}: no sink of this query keeps the decisions, so they would be kept in the checkpoint. But its file "
            "system cannot create a file only if it is absent, so two drivers could both decide. Nothing was written. Add a "
            "Kafka sink to the query, whose ledger keeps the decisions, or use a checkpoint on a local or shared POSIX path or "
            "on HDFS"
        )


class _Register(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a register.

    Attributes:
        write: an id of this write, so that equal bytes come from this write.
        records: the records that one append wrote.
    """

    format: str = FORMAT
    write: str
    records: tuple[Record, ...]


class _Own(NamedTuple):
    """The records that this driver has written."""

    run: str
    driver_epoch: int
    last: int


class RegisterLog(DecisionLog):
    """Decisions in write-once registers on any file system with put-if-absent.

    It fences drivers of the same checkpoint. A *copied* checkpoint has registers of its own; the fence in the sinks stops
    its driver (see ``docs/protocol.md``).
    """

    name = "registers"

    def __init__(self, files: Files) -> None:
        self._files = files
        self._own: _Own | None = None
        self._start, self._searched = 0, -1  # the newest truncation, and the last register searched for one

    def identity(self) -> str:
        """See :class:`DecisionLog`. Empty until a driver acquires the log; a bound checkpoint never is.

        Raises:
            DecisionLogDamagedError: it is torn or altered.
        """
        return register_id.read_id(self._files)

    def inspect(self) -> LogContents:
        """See :class:`DecisionLog`."""
        return self._contents(None)

    def acquire(self, claim: Claim) -> int:
        """See :class:`DecisionLog`. The first free register gets this driver's record."""
        if self._own is not None and self._own.run == claim.run:
            return self._own.driver_epoch
        record = Acquired.by_this_process(claim, int(time.time() * 1000))
        for _ in range(_CLAIMS):
            number = max(self._numbers(), default=-1) + 1
            try:
                won = self._put(number, [record])
            except DecisionInDoubtError as error:
                # If it was written after all, it only fences and decides nothing, so no batch is in doubt.
                raise RetriableError(f"acquiring the decision log failed: {error}") from error
            if won:
                # After the register: an id without registers is damage, not a new log.
                register_id.create_id(self._files)
                self._own = _Own(claim.run, number, number)
                return number
        raise RetriableError(
            f"{self._where()}: another driver wrote the next register first, {_CLAIMS} times in a row, so this driver could "
            "not acquire the decision log. Nothing was written; restart the query"
        )

    def read(self) -> LogContents:
        """See :class:`DecisionLog`."""
        return self._contents(self._require_own())

    def append(self, records: Sequence[Record]) -> int:
        """See :class:`DecisionLog`."""
        own = self._require_own()
        number = own.last + 1
        if not self._put(number, records):
            raise self._fenced(number)
        self._own = own._replace(last=number)
        return number

    def truncate(self, log_start: int) -> None:
        """See :class:`DecisionLog`. Deletes in ascending order, so that the newer part is always what is left."""
        try:
            for number in self._numbers():
                if number < log_start:
                    self._files.remove(_file(number))
        except Exception as error:  # noqa: BLE001 - a file system may raise anything; the next truncation retries
            where = self._where()
            logger.warning(
                "%s: the registers below %d could not be deleted; the next truncation retries: %s",
                where,
                log_start,
                error,
            )

    def close(self) -> None:
        """See :class:`DecisionLog`. There is nothing to release."""

    # -- writing -------------------------------------------------------------------------------------------------------

    def _put(self, number: int, records: Sequence[Record]) -> bool:
        """Write a register. Returns False if another driver has it.

        Raises:
            RetriableError: nothing was written.
            DecisionInDoubtError: the outcome is unknown.
        """
        data = _packed(records)
        failure: Exception | None = None
        try:
            written = self._files.put_if_absent(_file(number), data)
        except FatalError:  # the files themselves say that nothing was written
            raise
        except Exception as error:  # noqa: BLE001 - a file system may raise anything, and the outcome is unknown
            written, failure = False, error
        try:
            # The name may be taken by our own first try, if a client library has retried.
            found = data if written else self._files.read(_file(number))
            dropped = found == data and self._is_dropped(number)
        except Exception as error:
            raise DecisionInDoubtError(
                f"{self._where(number)}: it is not known whether this decision was written ({failure or error}). No data is "
                "lost. Restart the query when the file system answers; it reads the outcome"
            ) from error
        if found == data and isinstance(failure, NotDurableError):
            raise DecisionInDoubtError(
                f"{self._where(number)} was written but could not be made durable ({failure}). A power failure may remove it, "
                "so nothing was committed. No data is lost. Restart the query when the file system is healthy; it reads the "
                "outcome"
            ) from failure
        if found is None and failure is not None:
            raise RetriableError(f"{self._where(number)} could not be written: {failure}") from failure
        if dropped:
            with contextlib.suppress(Exception):  # no reader looks below a recorded truncation
                self._files.remove(_file(number))
        return found == data and not dropped

    def _is_dropped(self, number: int) -> bool:
        """Whether a newer register records a truncation that includes this one."""
        newer = (self._load(above) for above in self._numbers() if above > number)
        return any(entries is None or truncated_to(entries) > number for entries in newer)

    def _fenced(self, number: int) -> FencedError:
        driver = "another driver"
        with contextlib.suppress(Exception):  # only to name the driver; the register is certainly taken
            for _, record in self._load(number) or ():
                if isinstance(record, Acquired):
                    driver = f"{record.driver} (run {record.run})"
        return FencedError(
            f"{self._where(number)}: {driver} owns this checkpoint now, so this run can make no further decisions. No data is at "
            "risk; stop this run"
        )

    def _require_own(self) -> _Own:
        if self._own is None:
            raise AssertionError("acquire comes first")
        return self._own

    # -- reading -------------------------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        names = self._files.names(_DIRECTORY)
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def _contents(self, own: _Own | None) -> LogContents:
        """The numbers of the registers at or above the recorded truncation; the rest count as deleted."""
        missing: list[int] = []
        for _ in range(_TRIES):
            numbers = self._numbers()
            if own is not None and max(numbers, default=-1) > own.last:
                raise self._fenced(own.last + 1)
            last = max(numbers, default=-1) if own is None else own.driver_epoch
            try:
                start = self._recorded_start([number for number in numbers if number <= last])
            except RetriableError:
                continue  # a healthy driver may have truncated meanwhile
            missing = sorted(set(range(start, last + 1)).difference(numbers))
            if not missing and (numbers or self._files.read(register_id.FILE) is None):
                return LogContents(start, Entries(partial(self._entries, start, last)))
            # The listing may have been taken halfway through a truncation, so look again.
        raise DecisionLogDamagedError(
            f"{self._where()}: {f'registers {missing[:5]} are' if missing else 'every register is'} missing; without "
            "them it is unknown what was decided"
        )

    def _recorded_start(self, numbers: Sequence[int]) -> int:
        """Find the newest truncation. Reads only the registers above it, and each only once in this object's lifetime."""
        for number in reversed(numbers):
            if number <= self._searched:
                break
            if found := max((truncated_to([entry]) for entry in self._entries(number, number)), default=0):
                self._start = found
                break
        self._searched = max(numbers, default=-1)
        return self._start

    def _entries(self, first: int, last: int) -> Iterator[LogEntry]:
        for number in range(first, last + 1):
            entries = self._load(number)
            if entries is None:
                raise RetriableError(
                    f"{self._where(number)} was deleted while it was read: another driver has truncated the log. Nothing was "
                    "written; restart the query"
                )
            yield from entries

    def _load(self, number: int) -> list[LogEntry] | None:
        data = self._files.read(_file(number))
        if data is None:
            return None
        try:
            found = unseal(data, _Register, of_format=FORMAT)
        except msgspec.DecodeError as error:
            raise DecisionLogDamagedError(f"{self._where(number)} cannot be read: {error}") from error
        return [LogEntry(number, record) for record in found.records]

    def _where(self, number: int | None = None) -> str:
        return f"{self._files.location}/{_DIRECTORY if number is None else _file(number)}"


def _file(number: int) -> str:
    return f"{_DIRECTORY}/{number:020d}"


def _packed(records: Sequence[Record]) -> bytes:
    return seal(_Register(write=uuid.uuid4().hex, records=tuple(records)))
