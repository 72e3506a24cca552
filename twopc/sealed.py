"""JSON objects with a checksum in them, so that a torn or altered object is never mistaken for a written one."""

from __future__ import annotations

import hashlib
import re
from typing import Final, TypeVar

import msgspec

_T = TypeVar("_T")
_SEAL: Final = re.compile(rb',"check":"([0-9a-f]{64})"\}\Z')


def seal(record: msgspec.Struct) -> bytes:
    """Encode the record as JSON, with the checksum of all other fields as its last field."""
    return with_check(msgspec.json.encode(record))


def with_check(body: bytes) -> bytes:
    """A JSON object with its checksum in it."""
    return body[:-1] + f',"check":"{hashlib.sha256(body).hexdigest()}"}}'.encode()


class AlteredError(msgspec.DecodeError):
    """The object does not match the checksum in it."""


def unseal(data: bytes, kind: type[_T]) -> _T:
    """Decode and check the record.

    Raises:
        AlteredError: it is torn or altered.
        msgspec.DecodeError: it has another shape.
    """
    found = _SEAL.search(data)
    if found is None:
        raise AlteredError("it has no checksum: it is torn or was altered")
    if hashlib.sha256(data[: found.start()] + b"}").hexdigest().encode() != found[1]:
        raise AlteredError("it does not match its checksum: it is torn or was altered")
    return msgspec.json.decode(data, type=kind)
