"""Keep each task's rows in Arrow IPC files until the task's transactions are proven (``staging=True``).

Then no decided row is ever lost. Each task attempt writes one staged file, ``<driver epoch>/<batch id>/<UUID>.arrow`` (rule
13). The driver and the workers must share the location: a POSIX path, or a path on a file system or an object store that
pyarrow supports. A staged file has a unique name, is read by that name, and is never renamed. Each query that shares the
location has its own directory, named after the query id.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import fs
from tenacity import stop_after_delay, wait_fixed

from twopc.crash_points import crash_point
from twopc.errors import ConfigurationError, FatalError
from twopc.files import is_inside, is_unsupported, sync
from twopc.integration.spark.staged_file import Summed, arrow_size, is_whole
from twopc.integration.spark.staging_location import open_location, reaching, redaction_of, shown_below
from twopc.integration.spark.views import LETTER_MAX_BYTES, View, views_in, with_views
from twopc.retry import repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

logger = logging.getLogger(__name__)

#: NFS clients cache a directory's attributes for up to this long (``acdirmax`` in nfs(5)).
_STALE_S: Final = 60.0
_PAUSE_S: Final = 1.0


class StagedFileWriter:
    """Writes the staged file of one task attempt.

    Attributes:
        name: the staged file's path below the location.
    """

    def __init__(self, location: str, driver_epoch: int, batch_id: int, views: Mapping[str, View]) -> None:
        self._views = views
        self._filesystem, self._root = open_location(location)
        self.name = f"{driver_epoch}/{batch_id}/{uuid.uuid4().hex}.arrow"
        self._path = f"{self._root}/{self.name}"
        self._location = location
        self._sink: Summed | None = None
        self._writer: pa.RecordBatchFileWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows. The first rows create the file.

        Raises:
            UnavailableError: the file system refuses the rows.
        """
        with reaching(self._location, self.name, "written"):
            if self._writer is None:
                self._filesystem.create_dir(self._path.rpartition("/")[0], recursive=True)
                self._sink = Summed(self._filesystem.open_output_stream(self._path))
                self._writer = pa.ipc.new_file(self._sink, with_views(rows.schema, self._views))
            self._writer.write_batch(rows)

    def close(self) -> str | None:
        """Make the staged file complete and durable. Return the file's name, or None if there were no rows.

        Raises:
            UnavailableError: the file is not durable.
        """
        if self._writer is None or self._sink is None:
            return None
        with reaching(self._location, self.name, "written"):
            self._writer.close()
            self._sink.finish()
            if isinstance(self._filesystem, fs.LocalFileSystem):
                _fsync(self._path, self._root)
        crash_point("task.staged")
        return self.name


class Staging:
    """The staged files, for the driver (see ``twopc.engine.StagedRows``) and for the tasks that publish them.

    Args:
        location: this query's directory.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._filesystem, self._root = open_location(location)

    def __reduce__(self) -> tuple[type[Staging], tuple[str]]:
        return Staging, (self.location,)  # each process opens the location itself

    def has(self, name: str) -> bool:
        """See :class:`StagedRows`. A truncated staged file does not count. :meth:`read` detects any other damage."""
        with reaching(self.location, name, "read"):
            opened = self._opened(name)
            if opened is None:
                return False
            with opened as source:
                is_there = arrow_size(source) is not None
        if not is_there:
            logger.warning(
                "the staged rows in %s are ignored, because the file is torn", shown_below(self.location, name)
            )
        return is_there

    def require_visible(self, names: Collection[str]) -> None:
        """Check that this process sees an attempt's staged files. A repair needs these files (rule 9).

        A shared file system may show an old listing for a while. NFS also assumes for a while that a directory is absent because
        it was absent before. So the check is repeated before it fails.

        Raises:
            ConfigurationError: the process cannot read one of the files.
            UnavailableError: the file system did not respond.
        """
        again = repeating(stop=stop_after_delay(_STALE_S), backoff=wait_fixed(_PAUSE_S))
        missing = again(self._unseen, set(names))
        if missing is not None:
            raise ConfigurationError(
                f"the driver cannot see {shown_below(self.location, missing)}, which a task has just written, so this path must "
                "be a different directory on the workers. No part of this attempt is decided or visible. Set staging to a "
                "path that the driver and all workers share, such as a network file system, hdfs://, s3:// or gs://, "
                "and restart"
            )

    def _unseen(self, names: set[str]) -> str | None:
        """Return one of the files that this process does not see, or None. Make one listing per directory."""
        seen = set[str]()
        with reaching(self.location, "", "read"):
            for directory in {name.rpartition("/")[0] for name in names}:
                listed = fs.FileSelector(f"{self._root}/{directory}", allow_not_found=True)
                seen |= {f"{directory}/{info.base_name}" for info in self._filesystem.get_file_info(listed)}
        return next((name for name in sorted(names - seen) if not self.has(name)), None)

    def read(
        self, name: str, sink: str, letter_max_bytes: Callable[[], int] = lambda: LETTER_MAX_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """Yield a staged file's rows in the form that the sink's writer takes. Memory use does not grow with the file's size.

        Args:
            name: the staged file.
            sink: the sink's name.
            letter_max_bytes: see :meth:`View.of`.

        Raises:
            FatalError: the staged file is missing, torn or altered. No row was returned.
            UnavailableError: the file system did not respond.
        """
        with reaching(self.location, name, "read"):
            yield from self._read(name, sink, letter_max_bytes)

    def _read(self, name: str, sink: str, letter_max_bytes: Callable[[], int]) -> Iterator[pa.RecordBatch]:
        opened = self._opened(name)
        if opened is None:  # the file existed when the driver checked
            raise FatalError(
                f"the staged rows in {shown_below(self.location, name)} are missing, so no staged row was written. Perhaps this "
                "driver was paused, and a newer driver has proven the batch and deleted the staged rows. In that case, "
                "no data is at risk, and the newer driver continues. If any other process deleted the rows, the batch "
                "is decided but incomplete. In that case, restart the query, so that Spark evaluates the batch again. "
                "If Spark cannot do so, the query reports this and stops"
            )
        with opened as source:
            if not is_whole(source):
                raise FatalError(
                    f"the staged rows in {shown_below(self.location, name)} cannot be read, because the file is torn or was "
                    "altered. No staged row was written, and the batch stays decided. Remove the file and restart. Spark "
                    "then evaluates the batch again if it still can. Alternatively, restore the file from a backup, and restart"
                )
            with pa.ipc.open_file(source, footer_offset=arrow_size(source)) as reader:
                view = views_in(reader.schema)[sink]
                for index in range(reader.num_record_batches):
                    yield view.of(reader.get_batch(index), letter_max_bytes)

    def release(self, driver_epoch: int, batch: int) -> None:
        """See :class:`StagedRows`. Keeps the staged files of later driver epochs, because a newer driver needs them."""
        with self._deleting(f"batch {batch}", "The next batch") as deleting:
            for epoch in self._numbered(self._root):
                if epoch < driver_epoch:
                    deleting.callback(self._delete, str(epoch))
                elif epoch == driver_epoch:
                    for batch_id in self._numbered(f"{self._root}/{epoch}"):
                        if batch_id <= batch:
                            deleting.callback(self._delete, f"{epoch}/{batch_id}")

    def discard(self, driver_epoch: int, decided: Collection[str]) -> None:
        """See :class:`StagedRows`. Keeps the staged files of later driver epochs, because a newer driver needs them."""
        with self._deleting("failed attempts", "The next attempt or batch") as deleting:
            for epoch in self._numbered(self._root):
                if epoch < driver_epoch:
                    deleting.callback(self._delete, str(epoch), decided)
                elif epoch == driver_epoch:
                    # The next attempt uses the same directories. If they were deleted, NFS could hide the new ones for a while.
                    deleting.callback(self._delete_files, str(epoch), decided)

    @contextlib.contextmanager
    def _deleting(self, what: str, who: str) -> Iterator[contextlib.ExitStack]:
        """Run all of the body's callbacks, even if some fail. One user's directory must not block the others."""
        try:
            with contextlib.ExitStack() as deleting:
                yield deleting
        except OSError as error:
            text = "staged rows of %s in %s could not be deleted. %s will try again. Cause: %s"
            logger.warning(text, what, shown_below(self.location), who, redaction_of(self.location)(str(error)))

    def _delete(self, directory: str, kept: Collection[str] = ()) -> None:
        """Delete a directory. If it contains files in ``kept``, delete its other files."""
        if any(name.startswith(f"{directory}/") for name in kept):
            self._delete_files(directory, kept)
        else:
            self._filesystem.delete_dir(f"{self._root}/{directory}")

    def _delete_files(self, directory: str, kept: Collection[str]) -> None:
        selected = fs.FileSelector(f"{self._root}/{directory}", allow_not_found=True, recursive=True)
        for info in self._filesystem.get_file_info(selected):
            if info.type is fs.FileType.File and info.path.removeprefix(f"{self._root}/") not in kept:
                self._filesystem.delete_file(info.path)

    def _opened(self, name: str) -> pa.NativeFile | None:
        if not is_inside(name):  # a name comes from a decision
            return None
        with contextlib.suppress(FileNotFoundError):  # the file is absent, or a newer driver has just deleted it
            return self._filesystem.open_input_file(f"{self._root}/{name}")
        return None

    def _numbered(self, directory: str) -> list[int]:
        found = self._filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return [int(info.base_name) for info in found if info.base_name.isdigit()]


def _fsync(path: str, root: str) -> None:
    """Sync a file and its parent directories, up to the root's parent, because every directory below that parent may be new."""
    sync(path)
    above = Path(root).parent
    for directory in Path(path).parents:
        try:
            sync(directory)
        except OSError as error:
            # The parent may belong to another user. In that case, the root already existed.
            is_of_another_user = directory == above and isinstance(error, PermissionError)
            if not is_of_another_user and not is_unsupported(error):  # not every share can sync a directory
                raise
        if directory == above:
            return
