"""The id of a log of registers, in a file beside them: written once, with a check."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import TYPE_CHECKING, Final

from twopc.errors import DecisionLogDamagedError, RetriableError, TwoPhaseCommitError

if TYPE_CHECKING:
    from twopc.files import Files

FILE: Final = "registers/id"
_ID: Final = re.compile(r"[0-9a-f]{32}")
_CHECK_LENGTH: Final = 16


def read_id(files: Files) -> str:
    """Read the id; empty if the file does not exist.

    Raises:
        DecisionLogDamagedError: it is torn or altered.
    """
    data = files.read(FILE)
    if data is None:
        return ""
    identity = data[:32].decode("ascii", "replace")
    # An operator who follows the message below writes the id alone.
    if not _ID.fullmatch(identity) or data not in {identity.encode(), _checked(identity)}:
        raise DecisionLogDamagedError(
            f"{files.location}/{FILE} is torn or was altered. Nothing was written, and the other registers still hold every "
            "decision. The correct id is the log_identity in the newest binding-*.json beside them: write its 32 digits into "
            "the file"
        )
    return identity


def create_id(files: Files) -> None:
    """Write a new id if there is none.

    Raises:
        RetriableError: it could not be written.
    """
    try:
        files.put_if_absent(FILE, _checked(uuid.uuid4().hex))
    except TwoPhaseCommitError:
        raise
    except Exception as error:  # any error of the file system; the next try finds a file that is there after all
        raise RetriableError(
            f"{files.location}/{FILE}, the id of the decision log, could not be written: {error}. Nothing of this batch was "
            "written. Restart the query when the file system accepts files again"
        ) from error


def _checked(identity: str) -> bytes:
    return f"{identity} {hashlib.sha256(identity.encode()).hexdigest()[:_CHECK_LENGTH]}".encode()
