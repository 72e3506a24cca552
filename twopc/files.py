"""Define the few file operations that the protocol needs. The caller provides an implementation for its file system."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import uuid
from pathlib import Path
from typing import Final, Protocol

from twopc.errors import ConfigurationError

#: Flink's job manager has the same limit for state in memory.
_MEMORY_BYTES: Final = 5 * 1024 * 1024
#: The errors from ``link``, and from ``fsync`` on a directory, if the file system does not support the call (link(2), fsync(2)).
#: Network shares return different errors.
_UNSUPPORTED: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL})


class NotDurableError(OSError):
    """The file exists but could not be made durable. The file proves nothing, because it may vanish in a power failure."""


def is_unsupported(error: object) -> bool:
    """Whether the error shows that the file system lacks hard links or directory sync (:class:`UnlinkedFiles`)."""
    return isinstance(error, OSError) and error.errno in _UNSUPPORTED


def is_inside(name: str) -> bool:
    """Whether a relative name stays in its directory. A file that others can write may contain a name that leads elsewhere."""
    return not {"", ".", ".."} & set(name.split("/")) and not set("\\\0") & set(name)


class Files(Protocol):
    """A directory. Names are relative and use ``/``.

    Attributes:
        is_atomic: whether at most one of several callers of :meth:`put_if_absent` receives True. If ``is_atomic`` is
            False, as for an object store, several callers may receive True, and the file keeps the last caller's bytes.
            In that case, a decision log outside these files must fence the drivers.
    """

    location: str
    is_atomic: bool

    def read(self, name: str) -> bytes | None:
        """Return the file's bytes; None if the file does not exist."""

    def read_end(self, name: str, size: int) -> bytes | None:
        """Return the file's last ``size`` bytes, or all of its bytes if it is smaller; None if the file does not exist."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, except names that begin with a dot.

        Return no names if the directory does not exist.

        Some stores list a new file late, but :meth:`read` returns it immediately. Only ``read`` can therefore prove
        that a file is absent.
        """

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the complete file, or return False if a file with that name already exists.

        When the method returns, the file is durable in both cases. See :attr:`is_atomic`. After an error, the file may
        or may not exist.

        Raises:
            NotDurableError: the file exists, but may vanish.
        """

    def remove(self, name: str) -> None:
        """Remove the file if it exists."""


class LocalFiles:
    """A local directory. ``link`` implements put-if-absent atomically, so a file is never half-written under its final name."""

    is_atomic = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.location = os.fspath(root)
        self._root = Path(root)

    def read(self, name: str) -> bytes | None:
        """See :class:`Files`."""
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def read_end(self, name: str, size: int) -> bytes | None:
        """See :class:`Files`."""
        try:
            with (self._root / name).open("rb") as stream:
                stream.seek(max(os.fstat(stream.fileno()).st_size - size, 0))
                return stream.read()
        except FileNotFoundError:
            return None

    def modified_ms(self, name: str) -> int | None:
        """Return when the file was last written, in ms since 1970 UTC. Return None if the file does not exist."""
        try:
            return (self._root / name).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def names(self, directory: str) -> list[str]:
        """See :class:`Files`."""
        try:
            paths = list((self._root / directory).iterdir())
        except FileNotFoundError:
            return []
        return sorted(path.name for path in paths if not path.name.startswith("."))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :class:`Files`."""
        target = self._root / name
        self._make_directory(target.parent)
        # Spark, Hadoop and names() ignore a dot file.
        temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
        try:
            with temporary.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            return self._publish(temporary, target)
        finally:
            # An error here must not replace NotDurableError. After a failed sync, the file system may be read-only.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """See :class:`Files`."""
        self.take(name)

    def take(self, name: str) -> bool:
        """Remove the file, and return whether it existed. Of several callers, only one receives True."""
        try:
            (self._root / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def _publish(self, temporary: Path, target: Path) -> bool:
        is_new = True
        try:
            os.link(temporary, target)
        except FileExistsError:
            is_new = False
        self._sync(target.parent)  # sync even if the file existed, because its writer's sync may have failed
        return is_new

    def _make_directory(self, directory: Path) -> None:
        """Create the directory and its parents durably, so that no decision vanishes with its directory."""
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        try:
            self._sync(directory.parent)
        except OSError:
            with contextlib.suppress(OSError):  # the next try must not treat this directory as durable
                directory.rmdir()
            raise

    def _sync(self, directory: Path) -> None:
        try:
            sync(directory)
        except OSError as error:
            raise NotDurableError(error.errno, error.strerror, str(directory)) from error


class UnlinkedFiles(LocalFiles):
    """A local directory on a file system without hard links or directory sync, such as gcsfuse or SMB.

    Such a share offers no other operation that reliably decides between two machines. ``RENAME_NOREPLACE`` is often
    missing, or each machine enforces it only locally. The share is therefore treated like an object store, where two
    callers of ``put_if_absent`` may both receive True.
    """

    is_atomic = False

    def _publish(self, temporary: Path, target: Path) -> bool:
        is_new = not target.exists()
        if is_new:
            temporary.replace(target)
        self._sync(target.parent)
        return is_new

    def _sync(self, directory: Path) -> None:
        try:
            super()._sync(directory)
        except OSError as error:
            if not is_unsupported(error):  # not every share can sync, and no decision depends on it
                raise


class MemoryFiles:
    """A directory in this process's memory, for tests of sinks and engines. The content is lost when the process exits.

    If the query is then restarted, it refuses to start, and batches that were decided but not committed are lost.

    Args:
        limit_bytes: the maximum total size of the files, in bytes.
    """

    is_atomic = True

    def __init__(self, limit_bytes: int = _MEMORY_BYTES) -> None:
        if limit_bytes < 1:
            raise ConfigurationError(
                f"MemoryFiles(limit_bytes={limit_bytes}): limit_bytes must be a positive number of bytes"
            )
        self.location = "memory"
        self._limit_bytes = limit_bytes
        self._content: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def read(self, name: str) -> bytes | None:
        """See :class:`Files`."""
        return self._content.get(name)

    def read_end(self, name: str, size: int) -> bytes | None:
        """See :class:`Files`."""
        data = self.read(name)
        return None if data is None else data[-size:]

    def names(self, directory: str) -> list[str]:
        """See :class:`Files`."""
        prefix = f"{directory}/" if directory else ""
        found = {name.removeprefix(prefix).split("/")[0] for name in [*self._content] if name.startswith(prefix)}
        return sorted(name for name in found if not name.startswith("."))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :class:`Files`.

        Raises:
            ConfigurationError: the limit is reached. Nothing was written.
        """
        with self._lock:
            if name in self._content:
                return False
            size = sum(map(len, self._content.values())) + len(data)
            if size > self._limit_bytes:
                raise ConfigurationError(
                    f"{name} was not written: the files in memory would take up {size:,} bytes, but limit_bytes is "
                    f"{self._limit_bytes:,}. Keep the files on a file system (with twopc.LocalFiles, or in the query's "
                    "checkpoint with exactly_once()), or raise MemoryFiles(limit_bytes=…)"
                )
            self._content[name] = data
            return True

    def remove(self, name: str) -> None:
        """See :class:`Files`."""
        self._content.pop(name, None)


def sync(path: str | os.PathLike[str]) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
