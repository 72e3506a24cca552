"""Encode records as bytes, with a version and a checksum. Split the bytes into frames, because a store may limit an entry's size.

All frames of a record are written in one atomic step. An incomplete or altered record is never mistaken for an absent
record.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import DecisionLogDamagedError
from twopc.records import LogEntry, Record
from twopc.sealed import UNDAMAGED, OtherVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMAT: Final = "twopc/2"

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)
_CHECK_LENGTH: Final = 16
#: Accepts only a few ASCII digits in each number, because ``int`` accepts many other forms.
_HEADER: Final = re.compile(rb"(twopc/[0-9]{1,7}) ([0-9a-f]{64}) ([0-9]{1,7})/([0-9]{1,7}) ([0-9a-f]{16})")


def encode(record: Record, *, max_bytes: int) -> list[bytes]:
    """Encode a record as frames of at most ``max_bytes`` each (rule 14).

    A frame consists of ``<format> <sha256 of the body> <i>/<n> <check>``, a newline, and the frame's part of the body.
    The check covers only that frame. A missing frame can therefore be distinguished from an altered one.
    """
    body = _ENCODER.encode(record)
    digest = hashlib.sha256(body).hexdigest()
    room = max_bytes - len(f"{FORMAT} {digest} 9999999/9999999 {'f' * _CHECK_LENGTH}\n")
    if room <= 0:
        raise AssertionError(f"a frame of {max_bytes} bytes is too small to contain its header")
    parts = [body[i : i + room] for i in range(0, len(body), room)]
    heads = [f"{FORMAT} {digest} {i}/{len(parts)}" for i in range(1, 1 + len(parts))]
    return [f"{head} {_check(head, part)}\n".encode() + part for head, part in zip(heads, parts, strict=True)]


def _check(head: str, part: bytes) -> str:
    return hashlib.sha256(head.encode() + part).hexdigest()[:_CHECK_LENGTH]


def decode(frames: Iterable[tuple[int, bytes]]) -> list[LogEntry]:
    """Decode the frames with :func:`decoding`, and return all records in a list."""
    return list(decoding(frames))


def decoding(frames: Iterable[tuple[int, bytes]]) -> Iterator[LogEntry]:
    """Decode ``(offset, frame)`` pairs one by one, in the order of their offsets.

    A record's offset is the offset of its first frame. A record without its last frames is ignored. All of a record's
    frames are in one transaction, so no driver has acted on an incomplete record. A late EndTxn for the previous record
    can leave an incomplete record behind (KAFKA-17754). A record without its first frame is damaged.

    Raises:
        OtherVersionError: a frame is in another format.
        DecisionLogDamagedError: a frame is missing, foreign or altered.
    """
    pending: list[bytes] = []
    first, expected = 0, ("", 0, 0)
    for offset, frame in frames:
        digest, index, total, body = _parse(offset, frame)
        if index == 1:
            pending, first, expected = [], offset, (digest, 1, total)
        elif (digest, index, total) != expected:
            raise DecisionLogDamagedError(
                f"offset {offset} contains part {index}/{total} of a record instead of the expected part "
                f"{expected[1]}/{expected[2]} of another record"
            )
        pending.append(body)
        expected = (digest, index + 1, total)
        if index == total:
            yield LogEntry(first, _decode_body(first, digest, b"".join(pending)))
            pending = []


def _parse(offset: int, frame: bytes) -> tuple[str, int, int, bytes]:
    head, newline, body = frame.partition(b"\n")
    match = _HEADER.fullmatch(head)
    if not newline or match is None:
        raise DecisionLogDamagedError(f"the record at offset {offset} was not written by this toolkit, or is torn")
    written, digest, index, total, check = (group.decode() for group in match.groups())
    if written != FORMAT:
        raise OtherVersionError(
            f"the record at offset {offset} is in format {written}, but this version reads only {FORMAT}. Use the version "
            f"that wrote the record. {UNDAMAGED}"
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
        raise DecisionLogDamagedError(f"the record at offset {offset} cannot be decoded: {error}") from error
