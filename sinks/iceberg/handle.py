"""What the driver needs to add a task's files to the table."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.sinks.lake.handle import LakeHandle


@dataclass(frozen=True, kw_only=True)
class IcebergHandle(LakeHandle):
    """See :class:`LakeHandle`.

    Attributes:
        schema_id: the table's schema with which the files were written.
        spec_id: the table's partitioning with which they were written.
    """

    schema_id: int
    spec_id: int
