"""Check that Spark has written all of a batch's state, through Spark Connect.

A stateful operator commits a partition of its state when the last row of the partition has been read, see
``twopc.integration.spark.stateful``. Spark Connect does not show how many partitions a job has committed. So the driver evaluates
the batch itself, completely, unless a task has read exactly its rows. Then the checkpoint has a new version of each partition.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.files import Files
    from twopc.integration.spark.stateful import Tell

#: A version of a state store, by either provider, with the unique id that Spark 4 may add.
_VERSION: Final = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(?:delta|zip|changelog)")
#: In each operator's directory. From the second format on, there is a file for each batch in which it changed.
_METADATA: Final = ("_metadata/metadata", "_metadata/v2")


class ConnectState:
    """See :class:`~twopc.integration.spark.mode.StateCheck`.

    Args:
        batch_id: the batch.
        batch: the DataFrame that Spark has passed for it.
        is_cached: whether it is persisted, so that a job may read it without evaluating it.
        files: the query's checkpoint.
        tell: records an evaluation that is only for the state.
    """

    def __init__(self, batch_id: int, batch: Any, files: Files, tell: Tell, *, is_cached: bool) -> None:
        self._batch_id = batch_id
        self._batch = batch
        self._files = files
        self._tell = tell
        self._is_cached = is_cached
        self._is_whole = False

    @contextlib.contextmanager
    def watching(self, frame: Any) -> Iterator[None]:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        yield
        self._is_whole = self._is_whole or (frame is self._batch and not self._is_cached)

    def complete(self) -> None:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        if not self._is_whole:
            self._tell(
                f"batch {self._batch_id}'s rows for the sinks do not show that Spark has evaluated the whole batch, because they "
                "are made from the batch, or it is persisted. So each batch is evaluated once more, without output, to write "
                "its state. No data is at risk. To avoid it, pass exactly_once() the batch itself"
            )
            self.evaluate()
        missing = self._missing()
        if missing:
            raise ConfigurationError(
                f"batch {self._batch_id} has evaluated all of its rows, but {missing} of its state is not written, so the next "
                "batch could not start: the query's own plan cuts an operator off, for example by a join with a table that is "
                "empty. No part of this batch is decided or visible. Move that part of the plan into the foreachBatch "
                "function, and restart"
            )
        self._is_whole = True

    def evaluate(self) -> None:
        """See :class:`~twopc.integration.spark.mode.StateCheck`."""
        self._batch.write.format("noop").mode("append").save()

    def _missing(self) -> str:
        """The first part of the state that has no version of this batch; empty if all of it has one."""
        version = self._batch_id + 1
        for operator in self._numbers("state"):
            for partition in range(self._partitions(operator)):
                stores = self._stores(f"state/{operator}/{partition}")
                if not stores or any(version not in versions for versions in stores.values()):
                    return f"state/{operator}/{partition}"
        return ""

    def _stores(self, directory: str) -> dict[str, set[int]]:
        """The versions of each store of a partition. A join of two streams has several, each in a directory of its own."""
        stores: dict[str, set[int]] = {}
        for name in self._files.names(directory):
            inner = [] if _VERSION.fullmatch(name) or "." in name else self._files.names(f"{directory}/{name}")
            for store, file in [(name, one) for one in inner] or [("", name)]:
                if found := _VERSION.fullmatch(file):
                    stores.setdefault(store, set()).add(int(found[1]))
        return stores

    def _partitions(self, operator: int) -> int:
        """How many partitions an operator's state has."""
        first, second = (f"state/{operator}/{name}" for name in _METADATA)
        newest = max(self._numbers(second), default=None)
        content = self._files.read(first if newest is None else f"{second}/{newest}")
        try:
            found = json.loads((content or b"").decode().partition("\n")[2])
            return max(int(store["numPartitions"]) for store in found["stateStoreInfo"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"batch {self._batch_id} belongs to a query that keeps state, and {self._files.location}/state/{operator} does "
                f"not say how many partitions it has ({error!r}). So the toolkit cannot check whether all of the state is "
                "written. No part of this batch is decided or visible. Use a Spark version listed in the documentation"
            ) from error

    def _numbers(self, directory: str) -> list[int]:
        return sorted(int(name) for name in self._files.names(directory) if name.isdigit())
