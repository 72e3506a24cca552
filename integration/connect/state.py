"""Check through Spark Connect that Spark has written all of a batch's state.

A stateful operator commits a state partition when the partition's last row has been read (see
``twopc.integration.spark.stateful``). Spark Connect does not show how many partitions a job has committed. So the driver
evaluates the complete batch itself, unless the tasks have already read exactly the rows in the batch. After the evaluation,
the checkpoint must contain a new version of each partition.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError
from twopc.integration.spark.checkpoint import numbers, read_entry
from twopc.integration.spark.state_reports import incomplete
from twopc.integration.state_files import version_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from twopc.files import Files
    from twopc.integration.spark.state_reports import Tell

#: The kind of file that Spark writes later, from versions that are already committed.
_LATER: Final = "snapshot"
#: Metadata paths in each operator's directory. In the second format, Spark writes a file for each batch in which the
#: metadata changed.
_METADATA: Final = ("_metadata/metadata", "_metadata/v2")


class StateFiles:
    """A query's state in its checkpoint.

    Args:
        files: the query's checkpoint.
        without_keys: the ids of the stateful operators that have one partition. The checkpoint contains only the partition
            count of the query's other operators.
    """

    def __init__(self, files: Files, without_keys: Collection[int]) -> None:
        self._files = files
        self._without_keys = without_keys

    def missing(self, batch_id: int) -> str:
        """Return the first state partition without a version for this batch.

        Return an empty text if every partition has a version.
        """
        version, entry = batch_id + 1, read_entry(self._files, batch_id)
        planned = None if entry is None else entry.state_partitions
        for operator in sorted(numbers(self._files, "state")):
            for partition in range(self._partitions(batch_id, operator, planned)):
                stores = self._stores(f"state/{operator}/{partition}")
                if not stores or any(version not in versions for versions in stores):
                    return f"state/{operator}/{partition}"
        return ""

    def _stores(self, partition: str) -> list[set[int]]:
        """Return the versions of each store in a partition. A join of two streams has several stores, each with a directory."""
        names = self._files.names(partition)
        inner = (self._files.names(f"{partition}/{name}") for name in names if "." not in name)
        return [versions for files in (names, *inner) if (versions := _versions(files))]

    def _partitions(self, batch_id: int, operator: int, planned: int | None) -> int:
        if operator in self._without_keys:
            return 1
        # Spark's offline repartition of the state does not change an operator's metadata in the first format.
        if planned is not None:
            return planned
        first, second = (f"state/{operator}/{name}" for name in _METADATA)
        newest = max(numbers(self._files, second), default=None)
        content = self._files.read(first if newest is None else f"{second}/{newest}")
        try:
            found = json.loads((content or b"").decode().partition("\n")[2])
            return max(int(store["numPartitions"]) for store in found["stateStoreInfo"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"batch {batch_id} is from a stateful query, but {self._files.location}/state/{operator} does not show "
                f"how many partitions the state has ({error!r}). So the toolkit cannot check that Spark has written "
                "all of the state. No part of this attempt is decided or visible. Use a Spark version listed in the "
                "documentation"
            ) from error


class ConnectState:
    """See :class:`~twopc.integration.spark.mode.StateCheck`.

    Args:
        batch_id: the batch id.
        batch: the DataFrame that Spark has passed for the batch.
        is_cached: whether the DataFrame is persisted. If so, a job may read the cached rows without evaluating the batch.
        state: the state in the query's checkpoint.
        tell: a function to call with a message when the batch is evaluated only for its state.
    """

    def __init__(self, batch_id: int, batch: Any, state: StateFiles, tell: Tell, *, is_cached: bool) -> None:
        self._batch_id = batch_id
        self._batch = batch
        self._state = state
        self._tell = tell
        self._is_cached = is_cached
        self._is_whole = False

    def begin(self) -> None:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        self._is_whole = False

    @contextlib.contextmanager
    def watching(self, frame: Any) -> Iterator[None]:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        yield
        self._is_whole = self._is_whole or (frame is self._batch and not self._is_cached)

    def complete(self, *, is_visible: bool = False) -> bool:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        is_partial = not self._is_whole
        if is_partial:
            self._tell(
                f"batch {self._batch_id}: Spark may not have evaluated the whole batch, because the function either "
                "persisted the batch, or called exactly_once() with rows derived from it. To write all of the "
                "query's state, the driver therefore evaluates every batch of this query a second time, without "
                "output. No row is lost or duplicated. But if the state depends on values that change, such as uuid(), "
                "the clock or the order of rows, the state may not match the written rows. To avoid this, pass the "
                "batch itself to exactly_once()"
            )
            self._batch.write.format("noop").mode("append").save()
        missing = self._state.missing(self._batch_id)
        if missing:
            raise incomplete(
                self._batch_id,
                f"has not written {missing} of the batch's state",
                "The query's plan skips a stateful operator",
                is_visible=is_visible,
            )
        self._is_whole = True
        return is_partial


def _versions(files: Iterable[str]) -> set[int]:
    found = filter(None, map(version_of, files))
    return {version for version, kind in found if kind != _LATER}
