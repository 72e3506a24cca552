"""What a driver writes down, and the one interface of the place where it does.

A record is versioned and checksummed; where a store limits the size of one entry it is cut into frames, all of them
written in one atomic step. An incomplete or altered record is never taken for an absent one.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from twopc.errors import DecisionLogDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twopc.sink import Claim

FORMAT: Final = "twopc/1"


class Attempt(NamedTuple):
    """Names an attempt: a driver that died undecided leaves no record to count on (rule 13)."""

    incarnation: int
    counter: int


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one accepted task did.

    Attributes:
        partition: its index in the plan.
        rows: rows it was given.
        checksum: order-insensitive sum of the rows' 64-bit hashes, modulo 2**64.
        handles: by sink name, JSON values; a sink to which the task wrote nothing is absent (rule 8).
        staged: where its rows are kept (rule 9), if they are.
    """

    partition: int
    rows: int
    checksum: int
    handles: dict[str, dict[str, Any]] = {}
    staged: str | None = None


class TakeOver(msgspec.Struct, frozen=True, kw_only=True, tag="take_over"):
    """A driver took over. Its own offset in the log is its incarnation."""

    lineage: str
    run: str
    deciding_log: str
    driver: str
    at_ms: int


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """Opens a lineage; counts as the decision of batch ``first_batch - 1``.

    Attributes:
        prior_offsets: the checkpoint's source offsets of that batch; empty when there is none.
        ends: the lineage that was open before and is ended by this one.
    """

    lineage: str
    first_batch: int
    prior_offsets: tuple[str, ...]
    ends: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag="decision"):
    """Batch ``batch`` is to become visible, exactly with these transactions: the commit point.

    Attributes:
        offsets: the source offsets of the batch, one canonical string a source.
        tasks: every accepted task, empty ones included.
        since: by sink, where the evidence for its transactions begins.
        plan: "write", or "rewrite" where every transaction of an earlier decision of the batch was lost.
    """

    lineage: str
    batch: int
    attempt: Attempt
    offsets: tuple[str, ...]
    tasks: tuple[TaskReport, ...]
    since: dict[str, dict[str, Any]]
    plan: str = "write"


class Repair(msgspec.Struct, frozen=True, kw_only=True, tag="repair"):
    """Some transactions of a decided batch were lost: these handles replace them, task by task and sink by sink."""

    lineage: str
    batch: int
    attempt: Attempt
    tasks: tuple[TaskReport, ...]


class Truncation(msgspec.Struct, frozen=True, kw_only=True, tag="truncation"):
    """The driver is about to drop everything below ``log_start``. Carries on what was recorded there."""

    log_start: int
    begin: Begin
    ended: tuple[str, ...]


Record = TakeOver | Begin | Decision | Repair | Truncation


class LogEntry(NamedTuple):
    """A record and its position in the log."""

    offset: int
    record: Record


class LogContents(NamedTuple):
    """The whole log as one reader saw it.

    Attributes:
        start: the lowest position that the store still has.
        entries: in order.
    """

    start: int
    entries: tuple[LogEntry, ...]


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
    def take_over(self, claim: Claim) -> int:
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


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)
_CHECK_LENGTH: Final = 16
#: Digits are ASCII, and few: ``int`` takes more than it should.
_HEADER: Final = re.compile(rb"(twopc/[0-9]{1,7}) ([0-9a-f]{64}) ([0-9]{1,7})/([0-9]{1,7}) ([0-9a-f]{16})")


def encode(record: Record, *, max_bytes: int) -> list[bytes]:
    """A record as frames of at most ``max_bytes`` each (rule 14).

    A frame is ``<format> <sha256 of the whole body> <i>/<n> <check>`` and a newline, then its part of the body. The check is
    the frame's own: a set of sound frames that lacks the last ones was never whole, and is not an altered record.
    """
    body = _ENCODER.encode(record)
    digest = hashlib.sha256(body).hexdigest()
    room = max_bytes - len(f"{FORMAT} {digest} 9999999/9999999 {'f' * _CHECK_LENGTH}\n")
    if room <= 0:
        raise AssertionError(f"a frame of {max_bytes} bytes cannot hold its own header")
    parts = [body[i : i + room] for i in range(0, len(body), room)]
    heads = [f"{FORMAT} {digest} {i}/{len(parts)}" for i in range(1, 1 + len(parts))]
    return [f"{head} {_check(head, part)}\n".encode() + part for head, part in zip(heads, parts, strict=True)]


def _check(head: str, part: bytes) -> str:
    return hashlib.sha256(head.encode() + part).hexdigest()[:_CHECK_LENGTH]


def decode(frames: Iterable[tuple[int, bytes]]) -> list[LogEntry]:
    """The records in ``(offset, frame)`` pairs, in order. A record has the offset of its first frame.

    A record without its last frames is none: all of them are one transaction, so nobody has been told that it holds. A late
    EndTxn of the record before it can leave that (KAFKA-17754). One without its first frame has lost something.

    Raises:
        DecisionLogDamagedError: a frame is missing, foreign, altered, or of a later format.
    """
    entries: list[LogEntry] = []
    pending: list[bytes] = []
    first, expected = 0, ("", 0, 0)
    for offset, frame in frames:
        digest, index, total, body = _parse(offset, frame)
        if index == 1:
            pending, first, expected = [], offset, (digest, 1, total)
        elif (digest, index, total) != expected:
            raise DecisionLogDamagedError(
                f"part {index}/{total} of a record is at offset {offset}, where part {expected[1]}/{expected[2]} of "
                "another is due"
            )
        pending.append(body)
        expected = (digest, index + 1, total)
        if index == total:
            entries.append(LogEntry(first, _decode_body(first, digest, b"".join(pending))))
            pending = []
    return entries


def _parse(offset: int, frame: bytes) -> tuple[str, int, int, bytes]:
    head, newline, body = frame.partition(b"\n")
    match = _HEADER.fullmatch(head)
    if not newline or match is None:
        raise DecisionLogDamagedError(f"the record at offset {offset} was not written by this toolkit, or is torn")
    written, digest, index, total, check = (group.decode() for group in match.groups())
    if written != FORMAT:
        raise DecisionLogDamagedError(
            f"the record at offset {offset} has format {written}, not {FORMAT}: use the version that wrote it"
        )
    if _check(f"{written} {digest} {index}/{total}", body) != check:
        raise DecisionLogDamagedError(f"the record at offset {offset} does not match its checksum")
    return digest, int(index), int(total), body


def _decode_body(offset: int, digest: str, body: bytes) -> Record:
    if hashlib.sha256(body).hexdigest() != digest:
        raise DecisionLogDamagedError(f"the record at offset {offset} does not match its checksum")
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise DecisionLogDamagedError(f"the record at offset {offset} has an unknown shape: {error}") from error
