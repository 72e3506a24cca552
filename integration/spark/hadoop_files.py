"""The checkpoint's files through Hadoop, whatever file system they are on."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from twopc.errors import ConfigurationError
from twopc.files import Files, LocalFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext

#: File systems whose ``FileContext.rename`` without overwrite is atomic. s3a copies instead, so two drivers could both win.
_ATOMIC_RENAME: Final = frozenset({"hdfs", "viewfs", "abfs", "abfss", "webhdfs"})


def open_files(context: SparkContext, location: str) -> Files:
    """The directory ``location``, resolved as Spark resolves it.

    Raises:
        ConfigurationError: it cannot be opened, or its file system cannot create a file only if absent.
    """
    # PySpark's own gateway, which the public API does not show. A second one would change the first one's converters.
    gateway: Any = context._gateway  # noqa: SLF001 - see above
    path = gateway.jvm.org.apache.hadoop.fs.Path(location)
    configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001 - the same
    try:
        qualified = path.getFileSystem(configuration).makeQualified(path).toUri()
    except Py4JJavaError as error:
        raise ConfigurationError(
            f"checkpoint_location={location!r} cannot be opened: {error.java_exception}"
        ) from error
    if qualified.getScheme() == "file":
        return LocalFiles(qualified.getPath())
    if qualified.getScheme() not in _ATOMIC_RENAME:
        raise ConfigurationError(
            f"checkpoint_location={location!r}: {qualified.getScheme()} has no atomic rename, so two drivers could both create "
            f"the same file. Use a local or shared POSIX path, or one of {', '.join(sorted(_ATOMIC_RENAME))}"
        )
    return HadoopFiles(gateway, configuration, qualified.toString())


class HadoopFiles:
    """See :class:`twopc.files.Files`, over Hadoop's ``FileContext``."""

    def __init__(self, gateway: Any, configuration: Any, location: str) -> None:
        self.location = location
        self._jvm = gateway.jvm
        self._configuration = configuration  # the session's: credentials in spark.hadoop.* are in no other
        self._fs = self._jvm.org.apache.hadoop.fs
        self._context = self._fs.FileContext.getFileContext(self._jvm.java.net.URI(location), configuration)
        self._no_options = gateway.new_array(getattr(self._fs, "Options$Rename"), 0)

    def read(self, name: str) -> bytes | None:
        """See :class:`Files`."""
        stream = _if_present(lambda: self._context.open(self._path(name)))
        if stream is None:
            return None
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def names(self, directory: str) -> list[str]:
        """See :class:`Files`."""
        found = _if_present(lambda: self._context.util().listStatus(self._path(directory)))
        return sorted(status.getPath().getName() for status in found or ())

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :class:`Files`."""
        target = self._path(name)
        temporary = self._fs.Path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}.tmp")
        file_system = temporary.getFileSystem(self._configuration)
        stream = file_system.create(temporary, False)  # noqa: FBT003 - Hadoop's overwrite
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()
        try:
            self._context.rename(temporary, target, self._no_options)
        except Py4JJavaError as error:
            file_system.delete(temporary, False)  # noqa: FBT003 - Hadoop's recursive
            if "FileAlreadyExistsException" in str(error.java_exception.getClass()):
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        """See :class:`Files`."""
        _if_present(lambda: self._context.delete(self._path(name), False))  # noqa: FBT003 - Hadoop's recursive

    def _path(self, name: str) -> Any:
        return self._fs.Path(f"{self.location}/{name}" if name else self.location)


def _if_present(access: Callable[[], Any]) -> Any:
    """What ``access`` returns; None if the file or directory is absent."""
    try:
        return access()
    except Py4JJavaError as error:
        if "FileNotFoundException" in str(error.java_exception.getClass()):
            return None
        raise
