"""One step of the driver: the table is read once, and what the step changes is committed when it ends, wholly or not at all."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING, Final

import msgspec
from deltalake import CommitProperties, Transaction

from twopc.sinks.delta.errors import OvertakenError, StoreError, text_of, translated
from twopc.sinks.delta.layout import record_file
from twopc.sinks.delta.record import (
    Published,
    Record,
    app_id,
    next_pointer,
    read_pointer,
    read_record,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable

    from twopc.sinks.delta.entries import Entry
    from twopc.sinks.delta.store import Store

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0


class Step:
    """See above. All that a step reads of the sink hangs on the sink's pointer, so the step is valid until the pointer moves.

    Attributes:
        table: the table as it was read.
        record: the sink's record in it.
        control: the control record that the step writes; None if it changes none.
        published: the outcome that the step writes; None if it changes none.
        additions: the files that the step adds to the table.
        require_fit: requires that a version of the table can take these files. Called before each try to commit.
        require_whole: requires that these files are still there. Called before each try but the first, which follows a look.
    """

    def __init__(self, store: Store, sink: str) -> None:
        self._store = store
        self._sink = sink
        self.table: DeltaTable
        self.record: Record | None
        self.table, self.record = read_record(store, store.load(), sink)
        self.control: bytes | None = None
        self.published: Published | None = None
        self.additions: list[Entry] = []
        self.require_fit: Callable[[DeltaTable], None] = lambda _: None
        self.require_whole: Callable[[], None] = lambda: None

    @property
    def outcome(self) -> Published:
        """The outcome of the newest decision, as the step found it."""
        return self.record.published if self.record else Published()

    def end(self, timeout_ms: int) -> None:
        """Commit the step's changes, if there are any.

        A commit of others in between costs another try. A commit without an answer is repeated, too: since the pointer moves by
        compare-and-set, at most one of the tries takes effect, no matter how late.

        Raises:
            OvertakenError: another driver has moved the pointer.
            StoreError: the storage has refused or not answered for too long. The outcome is unknown.
        """
        if self.control is None and self.published is None:
            return
        ends_at, pause_s = time.monotonic() + timeout_ms / 1000, _FIRST_PAUSE_S
        record = self._new_record()
        write_record(self._store, self._sink, record)
        while True:
            self.require_fit(self.table)
            failure = self._commit(record)
            if failure is None or self._has_landed(record, failure, ends_at):
                break
            if time.monotonic() >= ends_at:
                raise failure
            logger.info("sink %r: a commit was refused or not answered, trying again: %s", self._sink, failure)
            time.sleep(random.uniform(0.5, 1) * pause_s)  # noqa: S311 - not a secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self.require_whole()
        if self.record is not None and self.record.before is not None:
            self._forget(self.record.before)

    def _new_record(self) -> Record:
        before = self.record
        return Record(
            pointer=next_pointer(before.pointer if before else None),
            control=msgspec.Raw(self.control) if self.control else before.control if before else msgspec.Raw(b"null"),
            published=self.published or self.outcome,
            before=before.pointer if before else None,
        )

    def _commit(self, record: Record) -> StoreError | None:
        """Commit once, to the version of the table from which the step has its facts.

        deltalake refuses the commit if a version since then has moved the same pointer. From a table that was loaded later it
        would take it: it does not compare the numbers. So the table that was looked at must be the one that is committed to.
        """
        table, batch = self.table, self.published.batch if self.published else -1
        properties = CommitProperties(
            app_transactions=[Transaction(app_id(self._sink), record.pointer)],
            custom_metadata={
                "isBlindAppend": True,  # it reads no rows, so deletes and updates of others need not wait for it
                "twopc.sink": self._sink,
                **({"twopc.batch": batch} if batch >= 0 else {}),
            },
        )
        try:
            with translated(f"committing to table {self._store.uri}"):
                table.create_write_transaction(
                    [entry.action() for entry in self.additions],
                    "append",
                    table.schema(),
                    partition_by=list(table.metadata().partition_columns),
                    commit_properties=properties,
                )
        except StoreError as error:
            return error
        return None

    def _has_landed(self, record: Record, failure: StoreError, ends_at: float) -> bool:
        """Whether the commit took effect after all. Reads the table again; the next try is made for what it is now."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                table = self._store.load()
                now = read_pointer(table, self._sink)
                break
            except StoreError:
                if time.monotonic() >= ends_at:
                    raise failure from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if now == record.pointer:
            return True
        if table.metadata().id != self.table.metadata().id:
            raise failure
        if now != (self.record.pointer if self.record else None):
            self._forget(record.pointer)  # the version that it was for is taken, so it never takes effect
            raise OvertakenError(f"another driver has moved the sink's pointer: {text_of(failure)}")
        self.table = table
        return False

    def _forget(self, pointer: int) -> None:
        """Delete a record that no pointer names any more."""
        with contextlib.suppress(StoreError):
            self._store.delete(record_file(self._sink, pointer))
