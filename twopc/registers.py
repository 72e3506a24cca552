"""The decision log without Kafka: write-once registers in a directory, by put-if-absent alone.

``registers/<20 digits>`` holds the records of one :meth:`RegisterLog.append`, all or none; its number is their place.
Whoever writes the next number drives; whoever finds it taken has lost and stops. Two rules make that safe:

* After an unclear write the register is read back. Every write carries an id of its own, so equal bytes are this write.
* A long-paused loser's next register may have been written *and dropped* since, and then it looks free. The record that
  announces the dropping is durable before the first register goes, and the newest register never goes: so a register
  that has just been written is looked at from above, and one that lies below a recorded truncation is taken back.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import socket
import sys
import time
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from twopc.codec import decode, encode
from twopc.decision_log import DecisionLog
from twopc.errors import DecisionInDoubtError, DecisionLogDamagedError, FencedError, RetriableError
from twopc.records import Acquired, LogContents, LogEntry, Record, Truncation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import Claim
    from twopc.files import Files

logger = logging.getLogger(__name__)

FORMAT: Final = "twopc-register/1"
_DIRECTORY: Final = "registers"
_IDENTITY: Final = f"{_DIRECTORY}/id"
_NUMBER: Final = re.compile(r"[0-9]{20}")
#: How often a reader starts anew when a driver appended or truncated while it read, and a claimant when it lost a race.
_TRIES: Final = 8


class _Own(NamedTuple):
    """What this driver knows of its own writing."""

    run: str
    driver_epoch: int
    last: int


class RegisterLog(DecisionLog):
    """Decisions in write-once registers on any file system with put-if-absent.

    It fences drivers of one checkpoint from each other. A *copied* checkpoint has registers of its own: what keeps its
    driver off is the fence in the sinks (see ``docs/protocol.md``).
    """

    name = "registers"

    def __init__(self, files: Files) -> None:
        self._files = files
        self._own: _Own | None = None

    def identity(self) -> str:
        """See :class:`DecisionLog`. Empty before the first take-over; a bound checkpoint is never that young."""
        return (self._files.read(_IDENTITY) or b"").decode("ascii", "replace")

    def inspect(self) -> LogContents:
        """See :class:`DecisionLog`."""
        return self._contents(None)

    def acquire(self, claim: Claim) -> int:
        """See :class:`DecisionLog`. The first free register becomes this driver's take-over record."""
        if self._own is not None and self._own.run == claim.run:
            return self._own.driver_epoch
        record = Acquired(
            query_id=claim.query_id,
            run=claim.run,
            deciding_log=claim.deciding_log,
            driver=f"{socket.gethostname()}:{os.getpid()}",
            at_ms=int(time.time() * 1000),
        )
        for _ in range(_TRIES):
            number = max(self._numbers(), default=-1) + 1
            try:
                won = self._put(number, [record])
            except DecisionInDoubtError as error:
                # If it is there after all it fences, and decides nothing: no reason to doubt any batch.
                raise RetriableError(f"taking over: {error}") from error
            if won:
                # After the register, so that an id without registers is damage and not a log that is about to begin.
                self._files.put_if_absent(_IDENTITY, uuid.uuid4().hex.encode())
                self._own = _Own(claim.run, number, number)
                return number
        raise RetriableError(f"{self._where()}: other drivers took {_TRIES} registers in a row before this one could")

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
        """See :class:`DecisionLog`. Ascending: what is left is always the newer part."""
        try:
            for number in self._numbers():
                if number < log_start:
                    self._files.remove(_file(number))
        except Exception as error:  # noqa: BLE001 - whatever the file system raises; the next truncation goes over it again
            logger.warning("%s: dropping what lies below %d failed: %s", self._where(), log_start, error)

    def close(self) -> None:
        """See :class:`DecisionLog`. There is nothing to release."""

    # -- writing -------------------------------------------------------------------------------------------------------

    def _put(self, number: int, records: Sequence[Record]) -> bool:
        """Write a register. False: it is somebody else's.

        Raises:
            RetriableError: nothing was written.
            DecisionInDoubtError: it cannot be found out whether it was.
        """
        data = _pack(records)
        failure: Exception | None = None
        try:
            written = self._files.put_if_absent(_file(number), data)
        except Exception as error:  # noqa: BLE001 - whatever the file system raises, the write is unclear
            written, failure = False, error
        try:
            # Taken may mean: by our own first try, which a client library has repeated.
            found = data if written else self._files.read(_file(number))
            dropped = found == data and self._is_dropped(number)
        except Exception as error:
            raise DecisionInDoubtError(
                f"{self._where(number)}: whether it was written cannot be found out ({failure or error}): restart the "
                "query when the file system answers, it reads what became of it"
            ) from error
        if found is None and failure is not None:
            raise RetriableError(f"{self._where(number)} could not be written: {failure}") from failure
        if dropped:
            with contextlib.suppress(Exception):  # no reader looks below a recorded truncation: only litter
                self._files.remove(_file(number))
        return found == data and not dropped

    def _is_dropped(self, number: int) -> bool:
        """Whether a truncation that is recorded above a register has declared it dropped."""
        for above in self._numbers():
            if above > number:
                entries = self._load(above)
                if entries is None or _floor(entries) > number:
                    return True
        return False

    def _fenced(self, number: int) -> FencedError:
        driver = "another driver"
        with contextlib.suppress(Exception):  # only to say who; that it is taken is certain
            for _, record in self._load(number) or ():
                if isinstance(record, Acquired):
                    driver = f"{record.driver} (run {record.run})"
        return FencedError(f"{self._where(number)}: {driver} has taken over this checkpoint; this run must stop")

    def _require_own(self) -> _Own:
        if self._own is None:
            raise AssertionError("take_over comes first")
        return self._own

    # -- reading -------------------------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        names = self._files.names(_DIRECTORY)
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def _contents(self, own: _Own | None) -> LogContents:
        """Read from the newest down to the recorded truncation: what lies below is gone, whether it is there or not."""
        missing: list[int] = []
        for _ in range(_TRIES):
            numbers = self._numbers()
            if own is not None and max(numbers, default=-1) > own.last:
                raise self._fenced(own.last + 1)
            last = max(numbers, default=-1) if own is None else own.driver_epoch
            found: dict[int, list[LogEntry]] = {}
            floor = 0
            for number in reversed(numbers):
                if floor <= number <= last and (entries := self._load(number)) is not None:
                    found[number] = entries
                    floor = max(floor, _floor(entries))
            missing = [number for number in range(floor, last + 1) if number not in found]
            if not missing and (found or self._files.read(_IDENTITY) is None):
                return LogContents(floor, tuple(entry for number in sorted(found) for entry in found[number]))
            # A healthy driver may have truncated, or may have been listed halfway, while this one read: look again.
        raise DecisionLogDamagedError(
            f"{self._where()}: {f'registers {missing[:5]} are' if missing else 'every register is'} missing. Restore "
            "them from a backup of the checkpoint; without them nobody knows what was decided"
        )

    def _load(self, number: int) -> list[LogEntry] | None:
        data = self._files.read(_file(number))
        if data is None:
            return None
        try:
            return decode((number, frame) for frame in _unpack(data))
        except DecisionLogDamagedError as error:
            raise DecisionLogDamagedError(f"{self._where(number)}: {error}") from error

    def _where(self, number: int | None = None) -> str:
        return f"{self._files.location}/{_DIRECTORY if number is None else _file(number)}"


def _file(number: int) -> str:
    return f"{_DIRECTORY}/{number:020d}"


def _floor(entries: Sequence[LogEntry]) -> int:
    return max((record.log_start for _, record in entries if isinstance(record, Truncation)), default=0)


def _pack(records: Sequence[Record]) -> bytes:
    """``<format> <sha256 of the rest>``, an id of this write, then two lines a record: its frame."""
    frames = [frame for record in records for frame in encode(record, max_bytes=sys.maxsize)]
    rest = b"\n".join([uuid.uuid4().hex.encode(), *frames])
    return f"{FORMAT} {hashlib.sha256(rest).hexdigest()}\n".encode() + rest


def _unpack(data: bytes) -> list[bytes]:
    head, _, rest = data.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if words[0] != FORMAT and words[0].startswith("twopc-register/"):
        raise DecisionLogDamagedError(f"it has format {words[0]}, not {FORMAT}: use the version that wrote it")
    if words != [FORMAT, hashlib.sha256(rest).hexdigest()]:
        raise DecisionLogDamagedError("it was not written by this toolkit, or is torn or altered")
    # JSON as it is written here has no raw newline: a frame is its header and one line.
    lines = rest.split(b"\n")[1:]
    return [b"\n".join(lines[i : i + 2]) for i in range(0, len(lines), 2)]
