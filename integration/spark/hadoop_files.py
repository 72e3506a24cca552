"""Access the checkpoint's files through Hadoop, on any file system that Hadoop supports."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.spark.java_errors import is_java_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext

    from twopc.files import Files

_T = TypeVar("_T")
#: File systems whose ``FileContext.rename`` without overwrite is atomic. s3a and gs copy instead.
_ATOMIC_RENAME: Final = frozenset({"hdfs", "webhdfs"})
#: Azure's driver renames files with ``If-None-Match: *`` (``AbfsClient.renamePath``), which a hierarchical namespace
#: makes atomic. With a flat namespace, the driver copies the file. Only a hierarchical namespace has access control
#: lists (``AzureBlobFileSystem.hasPathCapability``).
_AZURE: Final = frozenset({"abfs", "abfss"})
_ACLS: Final = "fs.capability.paths.acls"
#: The names of Hadoop's views begin with this (``ViewFileSystemOverloadScheme``). Ask only a view where it stores a directory.
#: Every batch opens the directory, and any other file system would send a request to its server to answer the question.
_VIEW: Final = "ViewFileSystem"
_EXISTS: Final = "FileAlreadyExistsException"
_ABSENT: Final = "FileNotFoundException"
#: The local directories that each context has opened. An opened directory stays valid while the context runs. Remote
#: file systems are not cached, because other code may close them.
_local: Final[WeakKeyDictionary[SparkContext, dict[str, LocalFiles]]] = WeakKeyDictionary()


def open_files(context: SparkContext, location: str) -> LocalFiles | HadoopObjects:
    """Open the directory ``location``, resolved as Spark resolves it.

    Raises:
        ConfigurationError: the directory cannot be opened.
    """
    known = _local.setdefault(context, {})
    if location in known:  # every batch opens the directory, which takes a dozen calls to the JVM
        return known[location]
    # The public API does not expose PySpark's gateway. Opening a second gateway would change the converters of this one.
    gateway: Any = context._gateway  # noqa: SLF001 - see above
    path = gateway.jvm.org.apache.hadoop.fs.Path(location)
    configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001 - see above
    try:
        file_system = path.getFileSystem(configuration)
        qualified = file_system.makeQualified(path)
        scheme = qualified.toUri().getScheme()
        if scheme == "file":
            known[location] = LocalFiles(qualified.toUri().getPath())
            return known[location]
        is_atomic = _is_atomic(file_system, qualified)
    except Py4JJavaError as error:
        raise ConfigurationError(
            f"checkpoint_location={location!r} cannot be opened. Check the path and its file system. Hadoop's error: "
            f"{error.java_exception}"
        ) from error
    return (HadoopFiles if is_atomic else HadoopObjects)(gateway, configuration, qualified.toString())


def _is_atomic(file_system: Any, path: Any) -> bool:
    """Whether renames are atomic where the directory is stored.

    A view only mounts other file systems. Its scheme is ``viewfs``, or any other (``ViewFileSystemOverloadScheme``).
    """
    is_view = str(file_system.getClass().getSimpleName()).startswith(_VIEW)
    stored = _resolved(file_system, path) if is_view else path
    scheme = stored.toUri().getScheme()
    return scheme in _ATOMIC_RENAME or (scheme in _AZURE and file_system.hasPathCapability(path, _ACLS))


def _resolved(file_system: Any, path: Any) -> Any:
    """Return the path below the mounts. A directory that does not exist yet will be stored with its parent's files."""
    found = _if_present(lambda: file_system.resolvePath(path))
    return _resolved(file_system, path.getParent()) if found is None else found


def renames_exclusively(files: Files) -> bool:
    """Whether Spark's rename in this checkpoint fails if the target exists, so that no driver can overwrite ``offsets/N``.

    This is about Spark's own files. A local directory is atomic for the toolkit's files, because ``link`` creates them. But
    for a local path, Spark checks the target and then calls ``rename``, which replaces a file that was created in between
    (``AbstractFileSystem.renameInternal``, ``RawLocalFileSystem.rename``). On a network share, or in a paused driver, the
    time in between is long.
    """
    return isinstance(files, HadoopFiles)


class HadoopObjects:
    """Implements :class:`twopc.files.Files` with Hadoop's ``FileSystem``, for a store without an atomic rename.

    ``location`` is the text of a Hadoop ``Path``, without escapes. An escaped URI would be a different path (SPARK-26824).
    """

    is_atomic = False

    def __init__(self, gateway: Any, configuration: Any, location: str) -> None:
        self.location = location
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._path_class = self._jvm.org.apache.hadoop.fs.Path  # py4j asks the JVM about each part of a class's name
        self._root = self._path_class(location)
        # Only the session's configuration has the credentials from spark.hadoop.*.
        self._file_system = self._path("").getFileSystem(configuration)

    def read(self, name: str) -> bytes | None:
        """See :class:`Files`."""
        return _if_present(lambda: self._read(self._path(name), 0))

    def read_end(self, name: str, size: int) -> bytes | None:
        """See :class:`Files`."""
        path = self._path(name)
        return _if_present(lambda: self._read(path, self._file_system.getFileStatus(path).getLen() - size))

    def modified_ms(self, name: str) -> int | None:
        """See :class:`twopc.files.LocalFiles`."""
        path = self._path(name)
        return _if_present(lambda: int(self._file_system.getFileStatus(path).getModificationTime()))

    def names(self, directory: str) -> list[str]:
        """See :class:`Files`."""
        only = self._gateway.new_array(self._path_class, 1)
        only[0] = self._path(directory)
        # For a single path, S3A returns an S3AFileStatus[], which py4j does not pass as a FileStatus[].
        found = _if_present(lambda: self._file_system.listStatus(only))
        if not found:
            return []
        # A call to the JVM for each name would take longer than the listing itself. The text is "{parent/a,parent/b}".
        paths = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found)
        text: str = self._jvm.org.apache.commons.lang3.ArrayUtils.toString(paths)
        parent = f"{found[0].getPath().getParent().toString().rstrip('/')}/"
        names = text[1:-1].removeprefix(parent).split(f",{parent}")  # no name contains a slash
        return sorted(name for name in names if not name.startswith("."))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :class:`Files`.

        A store publishes a file only when the writer closes it. Until then, another process may create the same file.
        """
        try:
            self._create(self._path(name), data)
        except Py4JJavaError as error:
            if is_java_error(error, _EXISTS):
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        """See :class:`Files`."""
        self._file_system.delete(self._path(name), False)  # noqa: FBT003 - Hadoop's parameter recursive

    def _read(self, path: Any, start: int) -> bytes:
        stream = self._file_system.open(path)
        try:
            if start > 0:
                stream.seek(start)
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _create(self, path: Any, data: bytes) -> None:
        stream = self._file_system.create(path, False)  # noqa: FBT003 - Hadoop's parameter overwrite
        try:
            stream.write(data)
            if self.is_atomic:
                stream.hsync()
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return self._path_class(self._root, name) if name else self._root


class HadoopFiles(HadoopObjects):
    """Implements :class:`twopc.files.Files` with Hadoop's ``FileContext``, whose rename is atomic."""

    is_atomic = True

    def __init__(self, gateway: Any, configuration: Any, location: str) -> None:
        super().__init__(gateway, configuration, location)
        fs = self._jvm.org.apache.hadoop.fs
        self._context = fs.FileContext.getFileContext(self._root.toUri(), configuration)
        self._no_options = gateway.new_array(getattr(fs, "Options$Rename"), 0)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :class:`Files`."""
        directory, _, base = name.rpartition("/")
        temporary = self._path(f"{directory}/.{base}.{uuid.uuid4().hex}.tmp".lstrip("/"))
        is_created = False
        try:
            self._create(temporary, data)
            is_created = True
            self._context.rename(temporary, self._path(name), self._no_options)
        except Py4JJavaError as error:
            with contextlib.suppress(Py4JJavaError):  # the caller needs the first error, not this one
                self._file_system.delete(temporary, False)  # noqa: FBT003 - Hadoop's parameter recursive
            if is_created and is_java_error(error, _EXISTS):
                return False
            raise
        return True


def _if_present(access: Callable[[], _T]) -> _T | None:
    """Return the result of ``access``, or None if the file or directory does not exist."""
    try:
        return access()
    except Py4JJavaError as error:
        if is_java_error(error, _ABSENT):
            return None
        raise
