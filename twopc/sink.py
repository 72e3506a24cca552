"""The contract for a sink that takes part in a two-phase commit.

The contract defines three roles:

* :class:`TwoPhaseCommitSink` describes the sink. A sink object is small and picklable, and has no open connections. The
  driver and each task have their own copies.
* :class:`SinkWriter` serves one task attempt on an executor. A writer can *begin*, *write*, *pre-commit* and *abort*.
* :class:`SinkCommitter` serves one run in the driver. A committer can *commit*, *abort*, *recover* and prove outcomes.

The methods for the steps of a batch have Flink's names: :meth:`SinkWriter.snapshot_state` (pre-commit, returns the
handle), :meth:`SinkCommitter.notify_checkpoint_complete` (commit), and :meth:`SinkCommitter.initialize_state`
(recovery, which commits again as the first step after a restart).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic

import msgspec

from twopc.attempt import HandleT
from twopc.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.committer import SinkCommitter
    from twopc.writer import SinkWriter


#: The metadata key under which an engine stores its own name for a field's type. Users see this type name.
TYPE_NAME: Final = b"twopc.type"


class Form(Enum):
    """How a column's values are converted for the sink. Nulls stay nulls."""

    AS_IS = "as it is"
    BINARY = "binary"  #: a string as its UTF-8 bytes
    EPOCH_MILLIS = "epoch milliseconds"  #: a timestamp as int64, milliseconds since 1970 UTC
    TEXT = "text"  #: the text that the engine displays for the value


@dataclass(frozen=True)
class SinkColumn:
    """One column of a sink's rows.

    Attributes:
        name: the column's name in the sink.
        source: the column of the batch that supplies the values.
        form: how the values are converted.
    """

    name: str
    source: str
    form: Form = Form.AS_IS


class TwoPhaseCommitSink(ABC, Generic[HandleT]):
    """The user's description of a sink.

    The object is frozen, picklable and cheap to create, and does not open any connections.

    Attributes:
        name: the sink name, which must stay the same across restarts; part of every id that the sink writes to its store.
    """

    name: str

    @property
    @abstractmethod
    def handle_type(self) -> type[HandleT]:
        """The dataclass of this sink's handles, used to decode them from a decision."""

    @property
    def prepare_timeout_ms(self) -> float | None:
        """How long pre-commit may take in total before the sink's transactions expire, in ms; None if they never expire."""
        return None

    @property
    def transactions_expire(self) -> bool:
        """Whether a decided transaction of this sink may expire, even one that was decided when the sink had other settings."""
        return self.prepare_timeout_ms is not None

    @property
    def columns(self) -> Collection[str] | None:
        """The columns that the sink needs, in any order; None if it uses every column."""
        return None

    @property
    def takes_dead_letters(self) -> bool:
        """Whether this sink can store rows that other sinks reject, each row as a ``value`` (bytes) with ``headers``."""
        return False

    @property
    def only_appends(self) -> bool:
        """Whether the sink keeps every row of earlier batches, even if a new row has the same key."""
        return False

    @property
    def keeps_task_order(self) -> bool:
        """Whether the sink applies the tasks' rows in the order of the tasks' numbers, so that a later task's value wins.

        Then each partition of a sorted DataFrame has its own task. If the tasks' order has no effect on the result, fewer
        tasks may write.
        """
        return False

    def beside(self, others: Iterable[TwoPhaseCommitSink[Any]]) -> TwoPhaseCommitSink[HandleT]:
        """Return this sink adapted to the query's other sinks, before anything is written.

        The adapted sink may reject rows that would damage another sink's data.

        Args:
            others: all of the query's sinks; this sink may be among them.

        Raises:
            ConfigurationError: this sink would damage another sink, regardless of the rows.
        """
        del others
        return self

    def choose_columns(self, schema: pa.Schema) -> Sequence[SinkColumn]:
        """Choose this sink's columns from the batch's columns, before the batch is evaluated (driver).

        By default, take all of :attr:`columns` unchanged, in the batch's order, and check their types with :meth:`check_schema`.

        Args:
            schema: the batch's schema. In messages, use :func:`twopc.sink.type_name` for a field's type.

        Raises:
            SchemaError: a column is missing or ambiguous, or has a type that the sink cannot accept. The message names
                the column.
        """
        import pyarrow as pa  # noqa: PLC0415 - only a query's driver calls this; describing a sink needs no Arrow

        wanted = schema.names if self.columns is None else self.columns
        for name in sorted(wanted):
            require_one(name, schema.names)
        taken = pa.schema([field for field in schema if field.name in wanted])
        self.check_schema(taken)
        return tuple(SinkColumn(name, name) for name in taken.names)

    def check_schema(self, schema: pa.Schema) -> None:
        """Check the types of the sink's columns before a batch is evaluated (driver).

        This method must not contact any store.

        Raises:
            SchemaError: a column has a type that the sink cannot accept.
        """
        del schema

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """Check whether this sink's writers could ever write these rows. The check must not contact the store.

        If bad records become dead letters, this method is called before a task writes its rows.

        Raises:
            BadRecordError: at least one of the rows can never be written.
        """
        del rows

    @abstractmethod
    def create_writer(self, task: TaskAttempt) -> SinkWriter[HandleT]:
        """Create the writer for one task attempt, on an executor."""

    def release(self, driver_epoch: int) -> None:
        """Release the resources that this process keeps for a driver's next writers, because the driver needs no more writers.

        This method must not end any transaction.

        Args:
            driver_epoch: see :class:`TaskAttempt`.
        """

    @abstractmethod
    def create_committer(self) -> SinkCommitter[HandleT]:
        """Create the committer for one run, in the driver."""

    def destinations_of(self, handle: HandleT) -> Collection[str]:
        """Return where a transaction writes its rows, such as ``topic orders``, if a setting of the sink chooses the place.

        If a decided transaction is lost, its rows must go to the same places again, even if the setting has changed in the
        meantime. So the place must come from the handle, not from the sink. If a setting chooses how rows are written, such as
        ``mode="upsert"``, that setting is part of the place. By default, the result is empty. This default is right if
        :meth:`SinkCommitter.binding` contains the place, or if the handle does not contain it.
        """
        del handle
        return ()

    def encode_handle(self, handle: HandleT) -> dict[str, Any]:
        """Encode a handle as JSON values, for the decision record."""
        encoded: dict[str, Any] = msgspec.to_builtins(handle)
        return encoded

    def decode_handle(self, encoded: Mapping[str, Any]) -> HandleT:
        """Decode the result of :meth:`encode_handle`.

        Raises:
            msgspec.ValidationError: the fields do not match this sink's handles.
        """
        return msgspec.convert(encoded, self.handle_type)


def type_name(field: pa.Field[pa.DataType]) -> str:
    """Return the engine's name for a column's type, or Arrow's name if the engine has no name for the type."""
    return (field.metadata or {}).get(TYPE_NAME, str(field.type).encode()).decode()


def require_one(name: str, names: Sequence[str]) -> None:
    """Check that exactly one column has this name. Names are case-sensitive.

    Raises:
        SchemaError: no column or more than one column has the name.
    """
    found = names.count(name)
    if not found:
        raise SchemaError(
            f"the DataFrame has no column {name!r} (columns: {listed(names)}). Include this column in the DataFrame"
        )
    if found > 1:
        raise SchemaError(
            f"the DataFrame has {found} columns named {name!r} (columns: {listed(names)}), so it is unclear which of "
            "them to write. Nothing was written. Drop or rename all but one of them. A join can produce such columns, because "
            "it keeps the columns from both sides"
        )


def listed(names: Iterable[str]) -> str:
    """Join column names for a message."""
    return ", ".join(map(repr, names)) or "none"
