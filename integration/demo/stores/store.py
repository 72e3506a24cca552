"""Define the interface between the demo and a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from twopc.integration.services import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame

    from twopc.sink import TwoPhaseCommitSink


class Output(ABC):
    """The output that one query writes to. The object is pickled into the query's process, so it holds no connection.

    Attributes:
        title: the output's name in the report.
        has_order: whether the reader returns each key's records in the order in which they were written.
        columns: the SQL expressions that compute the store's columns from the columns of Spark's Kafka source.
    """

    title: ClassVar[str]
    has_order: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = (
        "CAST(CAST(value AS STRING) AS BIGINT) AS number",
        "CAST(key AS STRING) AS key",
    )

    @abstractmethod
    def create(self) -> None:
        """Create the output, which is empty at first."""

    @abstractmethod
    def sink(self) -> TwoPhaseCommitSink[Any]:
        """Return this toolkit's sink for the output."""

    @abstractmethod
    def append(self, batch: DataFrame) -> None:
        """Append a batch as Spark's guides show."""

    @abstractmethod
    def numbers(self, rows: int, on_progress: Callable[[int], object] = lambda _: None) -> Iterator[int]:
        """Yield the ``number`` of every record that a reader sees. Do not use the sink's code.

        Args:
            rows: the number of records in the source.
            on_progress: called repeatedly with the number of records read so far.

        Raises:
            ServiceError: the store does not respond, or it contains a record that is not in the source.
        """

    @abstractmethod
    def written(self) -> int:
        """Return the number of records in the output, including those that readers do not see."""

    def unfinished(self) -> int:
        """Return the number of offsets that readers cannot reach because a transaction was left open."""
        return 0


class TableOutput(Output):
    """A table with the columns ``number`` and ``key``."""

    @abstractmethod
    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Return the ``number`` and the ``key`` of every row that a reader sees."""

    def numbers(self, rows: int, on_progress: Callable[[int], object] = lambda _: None) -> Iterator[int]:
        """See :class:`Output`."""
        found = self.rows()
        for number, key in found:
            if not 0 <= number < rows or key is None:
                raise ServiceError(f"The table contains a row that is not in the source: number {number}, key {key!r}")
            yield number
        on_progress(len(found))


class Store(ABC):
    """A running server."""

    @classmethod
    @abstractmethod
    def started(cls, directory: Path, bootstrap_servers: str) -> AbstractContextManager[Store]:
        """Start a server, and stop it when the context exits.

        Args:
            directory: an empty directory for the server's data.
            bootstrap_servers: the address of the demo's broker, which always runs.

        Raises:
            ServiceError: a required program or package is missing, or the server did not start.
        """

    @abstractmethod
    def output(self, name: str, partitions: int) -> Output:
        """Return a query's output.

        Args:
            name: the query name.
            partitions: the number of partitions, if the output is a topic.
        """

    @property
    def jars(self) -> list[Path]:
        """The jars that Spark's own writer needs."""
        return []

    @property
    def settings(self) -> dict[str, str]:
        """The session settings that Spark's own writer needs."""
        return {}
