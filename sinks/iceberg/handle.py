"""Define the handle for a task's files in an Iceberg table."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.sinks.iceberg.definition import Definition
from twopc.sinks.lake.handle import LakeHandle


@dataclass(frozen=True, kw_only=True)
class IcebergHandle(LakeHandle):
    """See :class:`LakeHandle`.

    Attributes:
        schema_id: the id of the table's schema when the files were written.
        spec_id: the id of the table's partitioning when the files were written.
        fingerprint: a hash of this schema and this partitioning (see :class:`Definition`).
    """

    schema_id: int
    spec_id: int
    fingerprint: str = ""

    @property
    def definition(self) -> Definition:
        """The schema and the partitioning with which the files were written."""
        return Definition(self.schema_id, self.spec_id, self.fingerprint)
