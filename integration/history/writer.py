"""Write the history to ``<checkpoint>/twopc/history``, with one line for each checkpoint that has ended.

The writer runs after the commit, so it does not delay the batch. Each line is written with a single ``write`` without ``fsync``.
If the machine crashes, the last lines may be lost or torn. A reader skips torn lines. The protocol does not depend on the
history.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twopc.files import LocalFiles
from twopc.listeners import Listener
from twopc.progress import COMPLETED
from twopc.sealed import seal

if TYPE_CHECKING:
    from twopc.files import Files
    from twopc.progress import Checkpoint

#: The name of the history's directory in ``<checkpoint>/twopc``.
DIRECTORY: Final = "history"
SUFFIX: Final = ".jsonl"
#: The maximum size of a file, and the number of files retained. A line usually takes up 1 KiB, and at most about 40 KiB.
FILE_BYTES: Final = 1024 * 1024
FILES: Final = 8
#: On file systems without append: the number of checkpoints in one object, and the number of objects retained.
OBJECT_CHECKPOINTS: Final = 100
OBJECTS: Final = 80


def writer_for(files: Files, *, is_wanted: bool | None) -> Listener | None:
    """Create the writer for a checkpoint's ``twopc`` directory. Return None if no history is wanted.

    Args:
        files: the directory.
        is_wanted: whether to keep a history. With None, keep a history only on a local file system.
    """
    is_local = isinstance(files, LocalFiles)
    if not (is_local if is_wanted is None else is_wanted):
        return None
    return AppendingWriter(Path(files.location, DIRECTORY)) if is_local else ObjectWriter(files)


class AppendingWriter(Listener):
    """Appends to the newest file in a local directory. When that file is full, begins a new file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None
        self._size = 0

    def ended(self, checkpoint: Checkpoint) -> None:
        """See :class:`Listener`."""
        line = seal(checkpoint) + b"\n"
        if self._descriptor is None or self._size + len(line) > FILE_BYTES:
            self._open(len(line))
        # Write the line in a single call. Otherwise, if two drivers use the same checkpoint and one of them is fenced,
        # their lines could be mixed.
        written = os.write(self._opened(), line)
        self._size += written
        if written < len(line):
            self.close()  # the next record then begins on a new line
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written", str(self._directory))

    def close(self) -> None:
        """See :class:`Listener`."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None:
            raise AssertionError("no file is open")
        return self._descriptor

    def _open(self, length: int) -> None:
        """Continue with the newest file, or begin a new file and delete the oldest file."""
        self.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in self._directory.iterdir() if path.suffix == SUFFIX)
        newest = self._directory / names[-1] if names else None
        if newest is None or newest.stat().st_size + length > FILE_BYTES:
            newest = self._directory / _name(names[-1] if names else "")
        for name in names[: max(0, len({*names, newest.name}) - FILES)]:
            (self._directory / name).unlink(missing_ok=True)
        descriptor = os.open(newest, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._size = os.fstat(descriptor).st_size
            if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
                self._size += os.write(descriptor, b"\n")  # a torn line must not damage the next line
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor


class ObjectWriter(Listener):
    """Collects the records of many checkpoints and writes them as one object, because HDFS and object stores cannot append.

    If the driver is killed, the records that it has not yet written are lost. A failed checkpoint is written
    immediately.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lines: list[bytes] = []
        self._last = ""

    def ended(self, checkpoint: Checkpoint) -> None:
        """See :class:`Listener`."""
        self._lines.append(seal(checkpoint) + b"\n")
        if len(self._lines) >= OBJECT_CHECKPOINTS or checkpoint.status != COMPLETED:
            self.close()

    def close(self) -> None:
        """See :class:`Listener`."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []  # lines that cannot be written are lost
        self._last = _name(self._last)
        self._files.put_if_absent(f"{DIRECTORY}/{self._last}", b"".join(lines))
        names = [name for name in self._files.names(DIRECTORY) if name.endswith(SUFFIX)]
        for name in names[:-OBJECTS]:
            self._files.remove(f"{DIRECTORY}/{name}")


def _name(last: str) -> str:
    """Choose a name that sorts after ``last``, even if the clock was set back."""
    number = int(time.time() * 1000)
    with contextlib.suppress(ValueError):
        number = max(number, int(last.removesuffix(SUFFIX)) + 1)
    return f"{number:014d}{SUFFIX}"
