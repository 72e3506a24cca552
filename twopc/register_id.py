"""Store a register log's id in a file next to the registers. The file is sealed, and written only once."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import DecisionLogDamagedError, RetriableError, TwoPhaseCommitError
from twopc.sealed import seal, unseal

if TYPE_CHECKING:
    from twopc.files import Files

FILE: Final = "registers/id"
#: An operator who follows the message below writes only the id into the file. An editor may add a line break.
_BY_HAND: Final = re.compile(rb"([0-9a-f]{32})\s*")


class _Identity(msgspec.Struct, frozen=True):
    id: str


def read_id(files: Files) -> str:
    """Return the id, or an empty string if the file does not exist.

    Raises:
        DecisionLogDamagedError: the file is torn or altered.
    """
    data = files.read(FILE)
    if data is None:
        return ""
    by_hand = _BY_HAND.fullmatch(data)
    if by_hand is not None:
        return by_hand[1].decode()
    try:
        return unseal(data, _Identity).id
    except msgspec.DecodeError as error:
        raise DecisionLogDamagedError(
            f"{files.location}/{FILE} is torn or was altered. Nothing was written, and the registers still contain every "
            f"decision. The correct id is log_identity in the newest {files.location}/binding-*.json. Write that id's 32 "
            f"digits into {files.location}/{FILE}"
        ) from error


def create_id(files: Files) -> None:
    """Write a new id if none exists.

    Raises:
        RetriableError: the id could not be written.
    """
    try:
        files.put_if_absent(FILE, seal(_Identity(id=uuid.uuid4().hex)))
    except TwoPhaseCommitError:
        raise
    except Exception as error:  # any file system error; if the file was written anyway, the next try finds it
        raise RetriableError(
            f"{files.location}/{FILE}, which contains the decision log's id, could not be written: {error}. This "
            "start wrote nothing. Restart the query when the file system accepts writes again"
        ) from error
