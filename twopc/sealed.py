"""JSON objects with a checksum in them: what is torn or altered is not taken for what somebody wrote."""

from __future__ import annotations

import hashlib
import re
from typing import Final, TypeVar

import msgspec

_T = TypeVar("_T")
_SEAL: Final = re.compile(rb',"check":"([0-9a-f]{64})"\}\Z')


def seal(record: msgspec.Struct) -> bytes:
    """The record as JSON, with the checksum of all other fields as its last one."""
    body = msgspec.json.encode(record)
    return body[:-1] + f',"check":"{hashlib.sha256(body).hexdigest()}"}}'.encode()


class AlteredError(msgspec.DecodeError):
    """The file does not match the checksum in it."""


def unseal(data: bytes, kind: type[_T]) -> _T:
    """The record. One without a checksum is from a former version.

    Raises:
        AlteredError: it is torn or altered.
        msgspec.DecodeError: it has no checksum, and is torn, altered or of another shape.
    """
    found = _SEAL.search(data)
    if found is not None and hashlib.sha256(data[: found.start()] + b"}").hexdigest().encode() != found[1]:
        raise AlteredError("it does not match its checksum: it is torn or was altered")
    try:
        return msgspec.json.decode(data, type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is torn or was altered: {error}") from error
