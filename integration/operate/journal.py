"""Before a forced action, record the action and the operator's reason in a write-once file."""

from __future__ import annotations

import getpass
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles, UnlinkedFiles, is_unsupported
from twopc.sealed import seal

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1
_NAME: Final = re.compile(r"operator-(\d+)\.json")
_TRIES: Final = 8


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """A forced action.

    Attributes:
        command: ``commit`` or ``abort``.
        transactions: the transactional ids, each with the evidence from the decision record.
        at_ms: when the operator forced the command, in ms since 1970 UTC.
        by: the operator's user name and host.
    """

    format: int = FORMAT
    command: str
    sink: str
    transactions: dict[str, str]
    reason: str
    at_ms: int
    by: str


def write_down(directory: Path, command: str, sink: str, transactions: dict[str, str], reason: str) -> str:
    """Write the reason durably, and return the file.

    Raises:
        ConfigurationError: the file cannot be written, so the caller must not carry out the action.
    """
    act = Act(
        command=command,
        sink=sink,
        transactions=transactions,
        reason=reason,
        at_ms=int(time.time() * 1000),
        by=f"{_user()}@{socket.gethostname()}",
    )
    try:
        try:
            return _add(LocalFiles(directory), act)
        except OSError as error:
            if not is_unsupported(error):
                raise
            return _add(UnlinkedFiles(directory), act)
    except OSError as error:
        raise ConfigurationError(f"the reason cannot be written to {directory} ({error}). Nothing was done") from error


def _add(files: LocalFiles, act: Act) -> str:
    for _ in range(_TRIES):
        name = f"operator-{max(_numbers(files), default=0) + 1:06d}.json"
        if files.put_if_absent(name, seal(act)):
            return f"{files.location}/{name}"
    raise ConfigurationError(f"another process is writing to {files.location}. Nothing was done. Run the command again")


def _numbers(files: LocalFiles) -> set[int]:
    return {int(found[1]) for name in files.names("") if (found := _NAME.fullmatch(name))}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())
