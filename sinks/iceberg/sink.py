"""Define the Iceberg sink that users create."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.sink import TwoPhaseCommitSink
from twopc.sinks.iceberg.committer import IcebergCommitter
from twopc.sinks.iceberg.handle import IcebergHandle
from twopc.sinks.iceberg.settings import IcebergSettings, row_format
from twopc.sinks.iceberg.view import IcebergView
from twopc.sinks.lake.writer import LakeWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class IcebergSink(IcebergSettings, TwoPhaseCommitSink[IcebergHandle]):
    """Appends rows to an Iceberg table. All rows of a batch become visible together, in one snapshot.

    Each task writes data files, which are not part of the table at first. After the decision, the driver adds all of
    the files in one commit.

    Args:
        name: the sink name, which must stay the same across restarts. A name may contain letters, digits, ``_`` and
            ``-``.
        catalog: the pyiceberg configuration for the catalog, such as ``{"type": "rest", "uri": "https://…"}``. Every
            executor must be able to reach the catalog. The key ``name`` sets the catalog's name, which matters for ``"type":
            "sql"``.
        table: ``namespace.table``. The rows' columns must have the same names as the table's columns.
        timeout_ms: how long to repeat a commit while the catalog rejects it or does not respond, and how long one request to a
            REST catalog may take.
        orphan_age_ms: the age at which your maintenance deletes files that are not part of any snapshot. For Spark's
            ``remove_orphan_files``, the default is three days. If a batch's files are older than a third of this age,
            the driver does not decide the batch.

    Raises:
        ConfigurationError: an argument is invalid. The message identifies the argument and says what to pass instead.
    """

    handle_type = IcebergHandle
    only_appends = True

    def check_schema(self, schema: pa.Schema) -> None:
        """See :class:`TwoPhaseCommitSink`. The driver reads the table's definition at most once every 30 s."""
        row_format(self, schema)

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`."""
        row_format(self, rows.schema).check(rows)

    def create_writer(self, task: TaskAttempt) -> LakeWriter[IcebergHandle]:
        """See :class:`TwoPhaseCommitSink`."""
        store = self.store()
        return LakeWriter(task, self.name, lambda: IcebergView(store, self), store.close)

    def create_committer(self) -> IcebergCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return IcebergCommitter(self)
