"""Read a checkpoint's history. The query may be running or dead. Skip and count torn lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import ConfigurationError
from twopc.integration.history.writer import DIRECTORY, SUFFIX
from twopc.integration.local_paths import local_path
from twopc.progress import FORMAT, Checkpoint
from twopc.sealed import AlteredError, unseal

if TYPE_CHECKING:
    from pathlib import Path


class HistoryError(ConfigurationError):
    """The history is missing or cannot be read. The error message is one line that says what to do."""


class _Head(msgspec.Struct):
    format: str


_head: Final = msgspec.json.Decoder(_Head)


@dataclass(frozen=True)
class InProgress:
    """A checkpoint that Spark has planned but not recorded as done.

    The checkpoint is in progress, or the query ended before the checkpoint was done.

    Attributes:
        batch_id: the checkpoint id.
        since_ms: when Spark planned the checkpoint, in ms since 1970 UTC.
    """

    batch_id: int
    since_ms: int


@dataclass(frozen=True)
class History:
    """The records of a query's checkpoints.

    Attributes:
        location: the checkpoint location, as the caller passed it.
        checkpoints: the checkpoints that have ended, in the order in which they ended. A retried batch appears once per attempt.
        skipped: where torn or foreign lines are, as ``file:line``.
        in_progress: the checkpoint in progress, if any.
    """

    location: str
    checkpoints: tuple[Checkpoint, ...]
    skipped: tuple[str, ...] = ()
    in_progress: InProgress | None = None


def read(checkpoint: Path) -> History:
    """Read the history.

    Args:
        checkpoint: the query's checkpoint, as a path or a ``file:`` URL. If the checkpoint's file system is not mounted on this
            machine, pass a copy of the directory ``twopc/history``.

    Raises:
        HistoryError: the history is missing, or was written by a newer release.
        ConfigurationError: the checkpoint is not on this machine.
    """
    try:
        return _read(local_path(checkpoint))
    except OSError as error:
        raise HistoryError(f"{checkpoint} cannot be read: {error.strerror or error}") from error


def _read(checkpoint: Path) -> History:
    if not checkpoint.is_dir():
        raise HistoryError(f"{checkpoint} is not a directory: pass the query's checkpointLocation")
    directory = checkpoint / "twopc" / DIRECTORY
    is_copy = not directory.is_dir() and not (checkpoint / "metadata").exists()
    if is_copy:
        directory = checkpoint
    files = sorted(path for path in directory.glob(f"*{SUFFIX}") if path.is_file()) if directory.is_dir() else []
    if not files:
        raise HistoryError(
            f"{checkpoint} contains no twopc/history directory, and is not a history itself. Either exactly_once() did "
            "not write this checkpoint, or CheckpointConfig(history=False) is set, or the checkpoint is on a file "
            "system where exactly_once() writes a history only with CheckpointConfig(history=True)"
            if is_copy
            else f"{checkpoint} contains no history. Either no batch has ended yet, or CheckpointConfig(history=False) is set"
        )
    checkpoints: list[Checkpoint] = []
    skipped: list[str] = []
    for path in files:
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            found = _parse(line, path)
            if found is None:
                skipped.append(f"{path.name}:{number}")
            else:
                checkpoints.append(found)
    if skipped and not checkpoints:
        raise HistoryError(
            f"{directory} does not contain a history: exactly_once() did not write the files in this directory"
        )
    return History(str(checkpoint), tuple(checkpoints), tuple(skipped), None if is_copy else _in_progress(checkpoint))


def _parse(line: bytes, path: Path) -> Checkpoint | None:
    try:
        return unseal(line, Checkpoint)
    except AlteredError:
        return None
    except msgspec.DecodeError:
        pass
    try:
        head = _head.decode(line).format
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    name, _, version = head.partition("/")
    if name == FORMAT.partition("/")[0] and version.isdecimal() and head != FORMAT:
        raise HistoryError(
            f"{path} is in the format {head}, which this release cannot read. Read the file with the release that "
            "wrote it"
        )
    return None


def _in_progress(checkpoint: Path) -> InProgress | None:
    """Find the batch in progress: Spark writes ``offsets/N`` before a batch and ``commits/N`` after it."""
    newest = max(
        (int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*") if path.name.isdecimal()), default=None
    )
    if newest is None or (checkpoint / "commits" / str(newest)).exists():
        return None
    try:
        since = (checkpoint / "offsets" / str(newest)).stat().st_mtime
    except FileNotFoundError:
        return None
    return InProgress(newest, int(since * 1000))
