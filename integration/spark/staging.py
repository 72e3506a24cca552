"""Rows kept as Arrow IPC until their transactions are proven (``staging=True``): then nothing decided is ever lost.

A slice is named by a UUID for each task attempt (rule 13), below its driver's incarnation and its batch. The path must
be one that driver and workers share: POSIX or a pyarrow file system.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from integration.spark.views import View, inscribe, inscribed
from twopc.crash_points import crash_point
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger(__name__)


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """The file system and path of a staging location.

    Raises:
        ConfigurationError: pyarrow has no file system for it.
    """
    try:
        if location.startswith("file:"):
            location = "/" + location.removeprefix("file:").lstrip("/")
        if "://" in location:
            filesystem, path = fs.FileSystem.from_uri(location)
        else:
            filesystem, path = fs.LocalFileSystem(), location
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigurationError(
            f"staging_location={location!r}: pyarrow cannot open it ({error}). Give a path that the driver and every worker "
            "share: POSIX, hdfs://, s3://, gs://"
        ) from error
    return filesystem, path.rstrip("/")


class SliceWriter:
    """Keeps one task attempt's rows."""

    def __init__(self, location: str, driver_epoch: int, batch: int, views: Mapping[str, View]) -> None:
        self._views = views
        self._filesystem, root = open_location(location)
        self.name = f"{driver_epoch}/{batch}/{uuid.uuid4().hex}.arrow"
        self._path = f"{root}/{self.name}"
        self._sink: pa.NativeFile | None = None
        self._writer: pa.RecordBatchFileWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows."""
        if self._writer is None:
            self._filesystem.create_dir(self._path.rpartition("/")[0], recursive=True)
            self._sink = self._filesystem.open_output_stream(self._path)
            self._writer = pa.ipc.new_file(self._sink, inscribe(rows.schema, self._views))
        self._writer.write_batch(rows)

    def close(self) -> str | None:
        """Make the slice whole and durable; returns its name, None when no row came."""
        if self._writer is None or self._sink is None:
            return None
        self._writer.close()
        self._sink.close()
        if isinstance(self._filesystem, fs.LocalFileSystem):
            _fsync(self._path)
        crash_point("task.staged")
        return self.name


@dataclass(frozen=True)
class Staging:
    """The driver's view of the staged slices; see ``twopc.staged_rows.StagedRows``."""

    location: str

    def has(self, name: str) -> bool:
        """See :class:`StagedRows`."""
        filesystem, root = open_location(self.location)
        found: fs.FileInfo = filesystem.get_file_info(f"{root}/{name}")
        return bool(found.type == fs.FileType.File)

    def read(self, name: str, sink: str) -> Iterator[pa.RecordBatch]:
        """See :class:`StagedRows`."""
        filesystem, root = open_location(self.location)
        with filesystem.open_input_file(f"{root}/{name}") as source, pa.ipc.open_file(source) as reader:
            view = inscribed(reader.schema)[sink]
            for index in range(reader.num_record_batches):
                yield view.of(reader.get_batch(index))

    def release(self, driver_epoch: int, batch: int) -> None:
        """See :class:`StagedRows`. Slices of later incarnations belong to a successor: they are left alone."""
        filesystem, root = open_location(self.location)
        try:
            for older in _numbered(filesystem, root):
                for done in _numbered(filesystem, f"{root}/{older}") if older <= driver_epoch else ():
                    if older < driver_epoch or done <= batch:
                        filesystem.delete_dir(f"{root}/{older}/{done}")
        except OSError as error:
            logger.warning("staged rows of batch %d could not be dropped, the next batch tries again: %s", batch, error)


def _numbered(filesystem: fs.FileSystem, directory: str) -> list[int]:
    found = filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
    return [int(info.base_name) for info in found if info.base_name.isdigit()]


def _fsync(path: str) -> None:
    import os  # noqa: PLC0415 - local file systems only

    for name in (path, os.path.dirname(path)):  # noqa: PTH120 - names of a pyarrow file system
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
