"""Define the Delta sink that users create."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.sink import TwoPhaseCommitSink
from twopc.sinks.delta.committer import DeltaCommitter
from twopc.sinks.delta.handle import DeltaHandle
from twopc.sinks.delta.settings import DeltaSettings, row_format
from twopc.sinks.delta.view import DeltaView
from twopc.sinks.lake.writer import LakeWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class DeltaSink(DeltaSettings, TwoPhaseCommitSink[DeltaHandle]):
    """Appends rows to a Delta table. All rows of a batch become visible together, in one version of the table.

    Each task writes Parquet files, which are not part of the table at first. After the decision, the driver adds all of
    the files in one commit.

    Args:
        name: the sink name, which must stay the same across restarts. A name may contain letters, digits, ``_`` and
            ``-``.
        table_uri: the table's directory in deltalake notation: ``s3://bucket/table``, ``abfss://…``, or a path that the
            driver and all executors share. The rows' columns must have the same names as the table's columns.
        storage_options: the deltalake options for the storage, such as credentials.
        timeout_ms: how long to keep retrying a commit while the storage rejects it or does not respond, and how long one
            request to the storage may take.

    Raises:
        ConfigurationError: an argument is invalid. The message identifies the argument and says what to pass instead.
    """

    handle_type = DeltaHandle
    only_appends = True

    def check_schema(self, schema: pa.Schema) -> None:
        """See :class:`TwoPhaseCommitSink`. The driver reads the table's definition at most once every 30 s."""
        row_format(self, schema)

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`."""
        row_format(self, rows.schema).check(rows)

    def create_writer(self, task: TaskAttempt) -> LakeWriter[DeltaHandle]:
        """See :class:`TwoPhaseCommitSink`."""
        store = self.store()
        return LakeWriter(task, self.name, lambda: DeltaView(store, self), store.close)

    def create_committer(self) -> DeltaCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return DeltaCommitter(self)
