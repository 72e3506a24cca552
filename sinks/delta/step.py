"""Run one step of a Delta sink's driver."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec
from deltalake import CommitProperties, Transaction

from twopc.errors import ConfigurationError
from twopc.sinks.delta.errors import translated
from twopc.sinks.delta.objections import find_objections
from twopc.sinks.delta.prepared import find_misfit
from twopc.sinks.delta.record import (
    Record,
    app_id,
    delete_older,
    next_pointer,
    read_pointer,
    record_file,
    write_record,
)
from twopc.sinks.delta.table import definition_of
from twopc.sinks.delta.view import DeltaView
from twopc.sinks.lake.errors import OvertakenError, StoreError, shortened
from twopc.sinks.lake.step import LakeStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake import DeltaTable

    from twopc.sinks.delta.entries import Entry
    from twopc.sinks.delta.handle import DeltaHandle
    from twopc.sinks.delta.settings import DeltaSettings
    from twopc.sinks.delta.store import Store


class Step(LakeStep[DeltaView, "tuple[DeltaTable, int | None]"]):
    """See :class:`LakeStep`. A commit moves the sink's pointer to the new record."""

    additions: Mapping[DeltaHandle, list[Entry]] | None

    def __init__(self, store: Store, settings: DeltaSettings) -> None:
        super().__init__(settings.name, DeltaView(store, settings))
        self._store = store
        self._title = settings.table_uri
        self._table = self.view.table
        self._before = self.view.record
        self._record: Record | None = None

    def commit(self) -> StoreError | None:
        """See :class:`LakeStep`. The commit is based on the table version that the step has read.

        deltalake rejects the commit if a later version has moved the sink's pointer. However, deltalake does not compare
        the pointers' numbers, so it would accept a commit that is based on a version after the move. The step must
        therefore use the version that it has read.
        """
        self._require_fit()
        record, table = self._written(), self._table
        properties = CommitProperties(
            app_transactions=[Transaction(app_id(self.sink), record.pointer)],
            custom_metadata={
                "isBlindAppend": True,  # the commit does not read rows, so it does not conflict with others' deletes and updates
                "twopc.sink": self.sink,
                **self._said(),
            },
        )
        try:
            with translated(f"committing to table {self._store.uri}"):
                table.create_write_transaction(
                    [entry.action() for entry in self._files()],
                    "append",
                    table.schema(),
                    partition_by=list(table.metadata().partition_columns),
                    commit_properties=properties,
                )
        except StoreError as error:
            return error
        return None

    def look(self) -> tuple[DeltaTable, int | None]:
        """See :class:`LakeStep`."""
        table = self._store.load()
        return table, read_pointer(table, self.sink)

    def catch_up(self, seen: tuple[DeltaTable, int | None], failure: StoreError) -> bool:
        """See :class:`LakeStep`."""
        record, (table, now) = self._record, seen
        assert record is not None
        if now == record.pointer:
            return True
        if str(table.metadata().id) != self.view.table_id:
            raise failure
        if now != (self._before.pointer if self._before else None):
            # The record stays, because an earlier try may have taken effect. Then the other driver's record names this one as its
            # predecessor. If no try took effect, a later start deletes the record.
            raise OvertakenError(f"another driver has moved the sink's pointer: {shortened(str(failure))}")
        self._table = table
        return False

    def tidy(self) -> None:
        """See :class:`LakeStep`. Keep the previous record, and delete that record's predecessor.

        A step without a batch, such as a start, lists all records, and also deletes the records of failed steps.
        """
        if self._before is None:
            return
        if self.published is None:
            with contextlib.suppress(StoreError):
                delete_older(self._store, self.sink, self._before.pointer)
        elif self._before.before is not None:
            self._forget(self._before.before)

    def _files(self) -> list[Entry]:
        return [entry for entries in (self.additions or {}).values() for entry in entries]

    def _said(self) -> dict[str, int]:
        """Describe the batch in the table's history, for operators and for :mod:`twopc.sinks.delta.history`."""
        if self.published is None or self.published.batch < 0:
            return {}
        rows = sum(entry.rows for entry in self._files())
        return {"twopc.batch": self.published.batch, "twopc.version": self.published.version, "twopc.rows": rows}

    def _require_fit(self) -> None:
        """Check that the table still accepts the files, in case the table was altered after the decision.

        Raises:
            StoreError: the table no longer accepts the files.
        """
        if self.additions is None:
            return
        definition = definition_of(self._table)
        for objection in find_objections(definition):
            raise StoreError(f"{self._title} {objection}", ConfigurationError)
        for handle, entries in self.additions.items():
            if handle.table == definition.fingerprint:
                continue
            for entry in entries:
                if misfit := find_misfit(self._store, entry, definition):
                    raise StoreError(
                        f"{self._title} was altered after the batch was decided, and no longer accepts the batch's rows: "
                        f"{misfit}",
                        ConfigurationError,
                        "Undo the change (ALTER TABLE), and restart the query. RESTORE TABLE would also remove all "
                        "rows that were added after the change",
                    )

    def _written(self) -> Record:
        """Return the step's record, which the first try writes."""
        if self._record is None:
            before = self._before.pointer if self._before else None
            record = Record(
                pointer=next_pointer(before),
                control=msgspec.Raw(self.control or self.view.stored or b"null"),
                published=self.published or self.view.outcome,
                before=before,
            )
            write_record(self._store, self.sink, record)
            self._record = record
        return self._record

    def _forget(self, pointer: int) -> None:
        """Delete a record to which no pointer refers. A failure does no harm."""
        with contextlib.suppress(StoreError):
            self._store.delete(record_file(self.sink, pointer))
