"""Access a Delta table and its storage, for one writer or one committer. Every error is a StoreError."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from twopc.redaction import secrets_in
from twopc.sinks.delta.errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WRITTEN_AT_ONCE: Final = 2**20


class Store:
    """Accesses a table's storage; see :class:`twopc.sinks.lake.files.Files`. All paths are relative to the table's directory.

    Args:
        uri: the table's directory.
        options: the deltalake options for the storage.
        timeout_ms: how long deltalake retries a failed request. The default in deltalake is three minutes.
    """

    def __init__(self, uri: str, options: Mapping[str, str] | None, *, timeout_ms: int) -> None:
        self.uri = uri
        limits = {"timeout": f"{timeout_ms}ms", "retry_timeout": f"{timeout_ms}ms"}
        self._options = {**limits, **(options or {})}
        translated.redacted.add(secrets_in(self._options))
        self._local = local_path(uri)
        self._remote: DeltaStorageHandler | None = None
        self._files: Any = None

    def load(self) -> DeltaTable:
        """Read the table's newest version.

        Each call creates a new object. A table that was restored from a backup may have lost its newest versions, and an
        existing object would not notice.
        """
        with translated(f"loading table {self.uri}"):
            return DeltaTable(self.uri, storage_options=self._options)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a new file for writing. If the context ends without an error, the file exists and is durable."""
        with translated(f"writing {path}"):
            if self._local is not None:
                target = self._local / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with pa.OSFile(str(target), "w") as stream:
                    yield stream
                _flush(target)
            else:
                self._opened()
                upload: Any = _Upload(self._remote, path)
                with pa.PythonFile(upload, "w") as stream:
                    yield stream

    def write(self, path: str, data: bytes) -> None:
        """Write a small file durably."""
        with self.writing(path) as stream:
            stream.write(data)

    def read(self, path: str) -> bytes | None:
        """Read a small file; return None if it does not exist."""
        with translated(f"reading {path}"):
            try:
                with self._opened().open_input_file(path) as stream:
                    found: bytes = stream.read()
                    return found
            except FileNotFoundError:
                return None

    def open(self, path: str) -> pa.NativeFile:
        """Open a file to read parts of it."""
        with translated(f"opening {path}"):
            stream: pa.NativeFile = self._opened().open_input_file(path)
            return stream

    def copy(self, path: str, copy: str) -> None:
        """Copy a file of any size durably to a new path."""
        with self.open(path) as source, self.writing(copy) as target, translated(f"copying {path}"):
            while piece := source.read(_WRITTEN_AT_ONCE):
                target.write(piece)

    def size_of(self, path: str) -> int | None:
        """Return a file's size in bytes; None if the file does not exist."""
        with translated(f"looking for {path}"):
            [info] = self._opened().get_file_info([path])
            return info.size if info.type is FileType.File else None

    def listed(self, path: str, *, directories: bool = False) -> list[str]:
        """List the names of the files or subdirectories in a directory.

        The list is empty if the directory does not exist.
        """
        wanted = FileType.Directory if directories else FileType.File
        with translated(f"listing {path}"):
            found = self._opened().get_file_info(FileSelector(path, allow_not_found=True))
            return sorted(info.base_name for info in found if info.type is wanted)

    def delete(self, path: str) -> None:
        """Delete a file. Do nothing if the file does not exist."""
        with translated(f"deleting {path}"), contextlib.suppress(FileNotFoundError):
            self._opened().delete_file(path)

    def close(self) -> None:
        """Release the connections."""
        self._remote = self._files = None

    def _opened(self) -> Any:
        if self._files is None:
            if self._local is not None:
                self._files = SubTreeFileSystem(str(self._local), LocalFileSystem())
            else:
                self._remote = DeltaStorageHandler(self.uri, self._options)
                self._files = PyFileSystem(self._remote)
        return self._files


class _Upload:
    """Lets Arrow write a new object. deltalake's stream accepts only ``bytes``, but Arrow writes buffers."""

    def __init__(self, handler: Any, path: str) -> None:
        self._stream = handler._handler.open_output_stream(path, None)  # noqa: SLF001 - no public function returns this stream
        self._waiting = bytearray()
        self._written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        piece = memoryview(data)
        self._waiting += piece
        self._written += piece.nbytes
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._send()
        return piece.nbytes

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Do nothing, because an upload sends each part as soon as the part is full."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._send()
            self._stream.close()

    def _send(self) -> None:
        if self._waiting:
            self._stream.write(bytes(self._waiting))
            self._waiting.clear()


def local_path(uri: str) -> Path | None:
    """Return a table's directory if the URI is a path on this machine's file system; None for any other URI."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in uri else Path(uri).absolute()


def _flush(path: Path) -> None:
    """Make a file and its name durable, because a vote must survive a machine crash."""
    for one in (path, path.parent):
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
