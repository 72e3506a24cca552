"""Run one step of an Iceberg sink's driver."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError
from twopc.new_checkpoint import NEW_NAME
from twopc.sinks.iceberg.definition import find
from twopc.sinks.iceberg.files import TableFiles
from twopc.sinks.iceberg.fit import find_unreadable
from twopc.sinks.iceberg.objections import FORMAT
from twopc.sinks.iceberg.proposal import Change, propose
from twopc.sinks.iceberg.record import read_tag
from twopc.sinks.iceberg.view import IcebergView
from twopc.sinks.lake.errors import OvertakenError, StoreError, shortened
from twopc.sinks.lake.step import LakeStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table import Table

    from twopc.sinks.iceberg.entries import Entry
    from twopc.sinks.iceberg.handle import IcebergHandle
    from twopc.sinks.iceberg.proposal import Additions, Proposal
    from twopc.sinks.iceberg.settings import IcebergSettings
    from twopc.sinks.iceberg.store import Store


class Step(LakeStep[IcebergView, "Table"]):
    """See :class:`LakeStep`. A commit moves the sink's tag."""

    additions: Mapping[IcebergHandle, list[Entry]] | None

    def __init__(self, store: Store, settings: IcebergSettings) -> None:
        super().__init__(settings.name, IcebergView(store, settings))
        self._store = store
        self._title = settings.table
        self._table = self.view.table
        self._tagged = self.view.tagged.snapshot_id if self.view.tagged else None
        self._tried: list[Proposal] = []
        self._landed: Proposal | None = None

    def commit(self) -> StoreError | None:
        """See :class:`LakeStep`."""
        additions = self._by_definition()
        self._require_fit(additions)
        change = Change(self.control or self.view.stored or b"", self.published or self.view.outcome, additions)
        proposal = propose(self._table, self.sink, self._tagged, change)
        self._tried.append(proposal)
        try:
            self._store.commit(self._table, proposal.requirements, proposal.updates)
        except StoreError as error:
            return error
        self._landed = proposal
        return None

    def look(self) -> Table:
        """See :class:`LakeStep`."""
        return self._store.load()

    def catch_up(self, seen: Table, failure: StoreError) -> bool:
        """See :class:`LakeStep`."""
        if str(seen.metadata.table_uuid) != self.view.table_id:
            raise failure
        tagged = read_tag(seen.metadata, self.sink)
        now = tagged.snapshot_id if tagged else None
        self._landed = next((proposal for proposal in self._tried if proposal.snapshot_id == now), None)
        if self._landed is not None:
            return True
        if now != self._tagged:
            raise OvertakenError(f"another driver has moved the sink's tag: {shortened(str(failure))}")
        self._table = seen
        return False

    def tidy(self) -> None:
        """See :class:`LakeStep`. Delete the metadata files of failed tries.

        These tries can no longer succeed, because the tag has moved.

        A successor may already have moved the tag again, so the tag does not show which try succeeded.
        """
        files = TableFiles(self._table.io)
        with contextlib.suppress(StoreError):
            for proposal in self._tried:
                for path in () if proposal is self._landed else proposal.paths:
                    files.delete(path)

    def _by_definition(self) -> Additions:
        found: Additions = {}
        for handle, entries in (self.additions or {}).items():
            found.setdefault(handle.definition, []).extend(entries)
        return found

    def _require_fit(self, additions: Additions) -> None:
        """Check that readers of the table can still read the files, in case the table was altered after the decision.

        Raises:
            StoreError: a column no longer fits the files, or the sink cannot write to the upgraded table.
        """
        version = self._table.metadata.format_version
        if additions and version > FORMAT:
            raise StoreError(
                f"{self._title} was upgraded to format version {version} after the batch was decided, and the sink "
                f"writes only version {FORMAT}. The batch's files are safe, but the sink cannot add them",
                ConfigurationError,
                "An upgrade cannot be undone. If nobody has written to the table since the upgrade, register the table's "
                f"previous metadata file in the catalog. Otherwise, copy the table's rows to a table with version {FORMAT}, and "
                f"{NEW_NAME}. Begin with the batch that could not be added",
            )
        now = self._table.schema()
        for written in additions:
            found = find(self._table.metadata, written)
            if found is not None and (misfit := next(find_unreadable(found[0], now), None)):
                raise StoreError(
                    f"{self._title} was altered after the batch was decided, so readers of the table could not read the "
                    f"batch's files: {misfit}",
                    ConfigurationError,
                    "Undo the change, and restart the query. If the column's type cannot be changed back, replace the column "
                    "in this order: add an optional column with another name, copy the values to it (UPDATE), drop the old "
                    "column, and rename the new column. This batch's values in the column will then be null, but all other "
                    "rows keep their values. Without the copy, the column would be null in every row of the table",
                )
