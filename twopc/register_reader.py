"""Read the write-once registers, and the log that these registers form together.

Reading changes nothing. Another driver may append or truncate at the same time, so a reader that finds inconsistent
registers reads them again.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twopc import register_id
from twopc.errors import DecisionLogDamagedError, FencedError, RetriableError
from twopc.records import Acquired, Entries, LogContents, LogEntry, Record, truncated_to
from twopc.sealed import UNDAMAGED, OtherFormatError, OtherVersionError, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.files import Files

FORMAT: Final = "twopc-register/1"
_DIRECTORY: Final = "registers"
_NUMBER: Final = re.compile(r"[0-9]{20}")
#: A reader starts again up to this many times if another driver appends or truncates in the meantime.
_TRIES: Final = 8


class _Register(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a register.

    Attributes:
        write: the id of the write. No two writes have the same id, so identical bytes come from the same write.
        records: the records that one append wrote.
    """

    format: str = FORMAT
    write: str
    records: tuple[Record, ...]


def packed(records: Sequence[Record]) -> bytes:
    """Encode records as the content of a register.

    Even equal records produce different bytes, because each write contains its own id.
    """
    return seal(_Register(write=uuid.uuid4().hex, records=tuple(records)))


def file_of(number: int) -> str:
    """Return a register's file name."""
    return f"{_DIRECTORY}/{number:020d}"


class Own(NamedTuple):
    """The records that this driver has written so far."""

    run: str
    driver_epoch: int
    last: int


class RegisterReader:
    """Reads the registers in a directory."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._start, self._searched = 0, -1  # the newest truncation, and the last register searched for one

    def numbers(self) -> list[int]:
        """List the registers that exist, in ascending order."""
        names = self._files.names(_DIRECTORY)
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def contents(self, own: Own | None) -> LogContents:
        """Return the records since the recorded truncation. Older registers are treated as deleted.

        Args:
            own: the calling driver's records. With this argument, the result ends with the driver's acquisition. With
                None, it contains all records.

        Raises:
            DecisionLogDamagedError: registers are missing, or one is torn or altered.
            FencedError: a newer driver has acquired the log.
        """
        missing: list[int] = []
        for _ in range(_TRIES):
            numbers = self.numbers()
            if own is not None and max(numbers, default=-1) > own.last:
                raise self.fenced(own.last + 1)
            last = max(numbers, default=-1) if own is None else own.driver_epoch
            try:
                start = self._recorded_start([number for number in numbers if number <= last])
            except RetriableError:
                continue  # a healthy driver may have truncated in the meantime
            missing = sorted(set(range(start, last + 1)).difference(numbers))
            if not missing and (numbers or self._files.read(register_id.FILE) is None):
                return LogContents(start, Entries(partial(self._entries, start, last)))
            # The listing may have been taken halfway through a truncation, so list again.
        raise DecisionLogDamagedError(
            f"{self.where()}: {f'registers {missing[:5]} are' if missing else 'all registers are'} missing. Without "
            "them, the decisions are unknown"
        )

    def is_dropped(self, number: int) -> bool:
        """Whether a newer register records a truncation that covers this register."""
        newer = (self._load(above) for above in self.numbers() if above > number)
        return any(entries is None or truncated_to(entries) > number for entries in newer)

    def fenced(self, number: int) -> FencedError:
        """Build the error for a driver that lost this register to another driver.

        The error names that other driver if possible.
        """
        driver = "another driver"
        # This read serves only to find the driver's name; the register is lost in any case.
        with contextlib.suppress(Exception):
            for _, record in self._load(number) or ():
                if isinstance(record, Acquired):
                    driver = f"{record.driver} (run {record.run})"
        return FencedError(
            f"{self.where(number)}: {driver} owns this checkpoint now, so this run can make no further decisions. No data is at "
            "risk. Stop this run"
        )

    def where(self, number: int | None = None) -> str:
        """Return the name of a register, or of the registers' directory, for a message."""
        return f"{self._files.location}/{_DIRECTORY if number is None else file_of(number)}"

    def _recorded_start(self, numbers: Sequence[int]) -> int:
        """Find the newest truncation.

        Each call reads at most the registers that were added since the previous call.
        """
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
                    f"{self.where(number)} was deleted while this driver was reading it, because another driver has "
                    "truncated the log. Nothing was written. Restart the query"
                )
            yield from entries

    def _load(self, number: int) -> list[LogEntry] | None:
        data = self._files.read(file_of(number))
        if data is None:
            return None
        try:
            found = unseal(data, _Register, of_format=FORMAT)
        except OtherFormatError as error:
            raise OtherVersionError(f"{self.where(number)}: {error}. {UNDAMAGED}") from error
        except msgspec.DecodeError as error:
            raise DecisionLogDamagedError(f"{self.where(number)} cannot be read: {error}") from error
        return [LogEntry(number, record) for record in found.records]
