"""The contract of a sink that takes part in a two-phase commit.

Three roles, each in the process where it belongs:

* :class:`TwoPhaseCommitSink` is the description: small, picklable, without a connection. Driver and tasks each have a copy.
* :class:`SinkWriter` lives in one task attempt on an executor: *begin, write, pre-commit*, or *abort*.
* :class:`SinkCommitter` lives in the driver, one for a run: *commit*, *abort*, *recover*, and the evidence of outcomes.

A batch's life cycle has Flink's names: :meth:`SinkWriter.snapshot_state` (pre-commit, returns the handle),
:meth:`SinkCommitter.notify_checkpoint_complete` (commit), :meth:`SinkCommitter.initialize_state` (recovery: commit
again, first thing after a restart).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from twopc.handle import HandleT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.committer import SinkCommitter
    from twopc.writer import SinkWriter


class TwoPhaseCommitSink(ABC, Generic[HandleT]):
    """A sink as its user describes it. Frozen, picklable, cheap; opens no connection by itself.

    Attributes:
        name: names the sink across restarts; part of every id that it leaves in the outside world.
    """

    name: str

    @property
    @abstractmethod
    def handle_type(self) -> type[HandleT]:
        """The dataclass of its handles, to decode them from a decision."""

    @property
    def prepare_timeout_ms(self) -> float | None:
        """How long pre-commit may take in all before the sink's transactions expire; None: they never do."""
        return None

    @property
    def columns(self) -> Collection[str] | None:
        """The columns that its rows need, in any order; None: it is given all that there are."""
        return None

    def check(self, rows: pa.RecordBatch) -> None:
        """Look whether a writer of this sink could ever write these rows. Depends on the rows alone; asks nobody.

        Called with no rows before a batch is evaluated, to check the columns; and, where bad records are to become dead
        letters, with the rows of a task before they are written.

        Raises:
            SchemaError: a column has a type that the sink cannot take.
            BadRecordError: at least one of the rows can never be written.
        """
        del rows

    @abstractmethod
    def create_writer(self, task: TaskAttempt) -> SinkWriter[HandleT]:
        """Create the writer of one task attempt, on an executor."""

    @abstractmethod
    def create_committer(self) -> SinkCommitter[HandleT]:
        """Create the committer of one run, in the driver."""

    def encode_handle(self, handle: HandleT) -> dict[str, Any]:
        """Encode a handle as JSON values, for the decision record."""
        encoded: dict[str, Any] = msgspec.to_builtins(handle)
        return encoded

    def decode_handle(self, encoded: Mapping[str, Any]) -> HandleT:
        """Decode what :meth:`encode_handle` returned.

        Raises:
            msgspec.ValidationError: these are not the fields of this sink's handles.
        """
        return msgspec.convert(encoded, self.handle_type)
