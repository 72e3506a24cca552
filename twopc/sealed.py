"""Seal the toolkit's files. A sealed file is a JSON object that contains its own checksum.

A torn or altered object is never mistaken for a valid object, and an object in any other format is rejected. Two kinds of
data are sealed in other ways: ledger records are split into frames (``twopc.codec``), and staged rows are a stream.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, TypeVar

import msgspec

from twopc.errors import ConfigurationError, DecisionLogDamagedError

_T = TypeVar("_T")
#: Ends the message of an :class:`OtherVersionError`.
UNDAMAGED: Final = "The decision log is not damaged. Nothing was written"
_SEAL: Final = re.compile(rb',"check":"([0-9a-f]{64})"\}\Z')


def seal(record: msgspec.Struct) -> bytes:
    """Encode the record as JSON, with the checksum of all other fields as its last field."""
    return with_check(msgspec.json.encode(record))


def with_check(body: bytes) -> bytes:
    """Add a checksum to a JSON object, as its last field."""
    return body[:-1] + f',"check":"{hashlib.sha256(body).hexdigest()}"}}'.encode()


class AlteredError(msgspec.DecodeError):
    """The object does not match its own checksum."""


class OtherFormatError(msgspec.DecodeError):
    """Another version of the toolkit wrote the object."""


class OtherVersionError(DecisionLogDamagedError):
    """Another version of the toolkit wrote a record in the decision log. No record is lost or altered.

    The advice for a damaged log is a new checkpoint. In this case, a new checkpoint would write rows twice.
    """


class _Versioned(msgspec.Struct):
    format: int | str | None = None


def unseal(data: bytes, kind: type[_T], *, of_format: int | str | None = None) -> _T:
    """Decode and check the record.

    Args:
        data: the result of :func:`seal`.
        kind: the record's class.
        of_format: the value that the record's field ``format`` must have; None if the record has no such field.

    Raises:
        AlteredError: the record is torn or altered.
        OtherFormatError: the record has a different format.
        msgspec.DecodeError: the record has a different shape.
    """
    found = _SEAL.search(data)
    if found is None:
        raise AlteredError("the file has no checksum, so it is torn or was altered")
    if hashlib.sha256(data[: found.start()] + b"}").hexdigest().encode() != found[1]:
        raise AlteredError("the file does not match its checksum, so it is torn or was altered")
    if of_format is not None:
        written = msgspec.json.decode(data, type=_Versioned).format
        if written != of_format:
            raise OtherFormatError(
                f"the file is in format {written}, but this version reads only format {of_format}. Use the version that "
                "wrote the file"
            )
    return msgspec.json.decode(data, type=kind)


def unseal_file(where: str, data: bytes, kind: type[_T], *, of_format: int | str, remedy: str) -> _T:
    """Decode and check a file that an operator can replace.

    Args:
        where: the file, for the message.
        data: the file's content.
        kind: the record's class.
        of_format: the value that the record's field ``format`` must have.
        remedy: a sentence, without the final period, that says what to do if the file is damaged.

    Raises:
        ConfigurationError: the file is torn or altered, or has a different format.
    """
    try:
        return unseal(data, kind, of_format=of_format)
    except OtherFormatError as error:
        raise ConfigurationError(f"{where}: {error}. Nothing was written") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{where} cannot be read ({error}). Nothing was written. {remedy}") from error
