"""Define the handle for a task's files in an Iceberg table."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.sinks.lake.handle import LakeHandle


@dataclass(frozen=True, kw_only=True)
class IcebergHandle(LakeHandle):
    """See :class:`LakeHandle`.

    Attributes:
        schema_id: the id of the table's schema when the files were written.
        spec_id: the id of the table's partitioning when the files were written.
    """

    schema_id: int
    spec_id: int
