"""The driver's side of the PostgreSQL sink: one transaction publishes a whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from twopc import control
from twopc.attempt import Evidence
from twopc.errors import BadRecordError, ConfigurationError, RetriableError
from twopc.fenced_committer import FencedCommitter
from twopc.sinks.postgres.errors import FAILURES, explained, text_of
from twopc.sinks.postgres.handle import PostgresHandle
from twopc.sinks.postgres.statements import Statements, read_facts
from twopc.sinks.postgres.table import fingerprint, read_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from twopc.attempt import Claim, Owner
    from twopc.errors import TwoPhaseCommitError
    from twopc.sinks.postgres.settings import PostgresSettings
    from twopc.sinks.postgres.target import Table

    Connection = psycopg.Connection[Any]

_PROOFS: Final = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}
#: Nobody waits for a stage to be dropped.
_DROP_LOCK_TIMEOUT_MS: Final = 1_000
#: How many stages one transaction drops, since each takes a lock: ``max_locks_per_transaction`` is 64 by default.
_DROPPED_AT_ONCE: Final = 50
#: The beginnings of SQLSTATEs after which a repetition may succeed at once.
_PASSING: Final = ("40", "57P01", "57P02")
#: The client's words for a connection that the other side has closed.
_BROKEN: Final = "closed the connection"
#: ``server_version_num`` of the oldest supported version.
_OLDEST: Final = 150_000


class PostgresCommitter(FencedCommitter[PostgresHandle, "Connection"]):
    """See :class:`FencedCommitter`.

    A step is a transaction. It begins with the lock of the control record, and so waits for a former step, even for one whose
    driver is gone while its backend is still in COMMIT. What the step then finds is final.
    """

    failures = FAILURES

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._statements = Statements(settings.schema, settings.name)
        self._database = settings.database()
        self._has_objects = False
        self._oid: int | None = None

    # -- the store's hooks ----------------------------------------------------------------------------------------------

    def step(self) -> AbstractContextManager[Connection]:
        """See :class:`FencedCommitter`."""
        return self._database.transaction()

    def explain(self, error: Exception, what: str) -> TwoPhaseCommitError:
        """See :class:`FencedCommitter`."""
        return explained(error, what)

    def reason(self, error: Exception) -> str:
        """See :class:`FencedCommitter`."""
        return text_of(error)

    def check_store(self, step: Connection) -> None:
        """See :class:`FencedCommitter`. The first batch's columns decide the rest, see :meth:`PostgresSink.check_schema`."""
        read_table(step, self._settings.table)
        is_standby, _, version, _ = self._facts(step)
        if is_standby:
            raise ConfigurationError(f"sink {self.name!r}: the dsn leads to a standby: pass the primary's")
        if version < _OLDEST:
            raise ConfigurationError(f"sink {self.name!r}: PostgreSQL {version // 10_000} is too old: use 15 or newer")

    def load(self, step: Connection) -> bytes | None:
        """See :class:`FencedCommitter`; None if the sink's own tables do not exist yet."""
        if not self._has_objects:
            self._has_objects = bool(_one(step, self._statements.find_objects()))
        if not self._has_objects:
            return None
        found: bytes | None = _one(step, self._statements.load_control(locked=True))
        return found

    def swap(self, step: Connection, old: bytes | None, new: bytes) -> bool:
        """See :class:`FencedCommitter`."""
        return step.execute(self._statements.swap_control(old, new)).rowcount == 1

    def is_prepared(self, step: Connection, handle: PostgresHandle) -> bool:
        """See :class:`FencedCommitter`. A slice with a marker is published already, or it was given up."""
        return self._staged(step, [handle], unmarked=True).get(handle.transaction) == handle.rows

    def publish(self, step: Connection, handle: PostgresHandle, version: int) -> None:
        """See :class:`FencedCommitter`."""
        list(self.publish_all(step, [handle], version))

    def publish_all(
        self, step: Connection, handles: Sequence[PostgresHandle], version: int
    ) -> Iterator[PostgresHandle]:
        """See :class:`FencedCommitter`: all transactions with one statement."""
        whole = self._whole(step, handles)
        # Under the lock of the owner, so the slice of a decided transaction can only be published, or lost for good. But the
        # markers of a decision before the newest one may be forgotten, and then it only looks lost.
        if control.decode(self.load(step)).decided == version:
            gone = [handle.transaction for handle in handles if handle not in whole]
            step.execute(self._statements.insert_markers(gone, version=version, state="aborted"))
        names = [handle.transaction for handle in whole]
        marked = step.execute(self._statements.insert_markers(names, version=version, state="committed"))
        fresh = {name for (name,) in marked}
        if todo := [handle for handle in whole if handle.transaction in fresh]:
            self._insert(step, todo)
        yield from handles

    def outcome(self, step: Connection, handle: PostgresHandle) -> Evidence:
        """See :class:`FencedCommitter`."""
        return _PROOFS.get(_one(step, self._statements.find_marker(handle.transaction)), Evidence.UNKNOWN)

    def roll_back(self, step: Connection, transaction: str, version: int) -> None:
        """See :class:`FencedCommitter`. The stage is dropped later, see :meth:`_drop_stages`."""
        step.execute(self._statements.insert_markers([transaction], version=version, state="aborted"))

    def pending(self, step: Connection) -> list[str]:
        """See :class:`FencedCommitter`. A task that has not committed its slice yet is not seen; a later sweep finds it."""
        return [name for (name,) in step.execute(self._statements.find_slices_without_marker())]

    def forget_before(self, step: Connection, version: int) -> None:
        """See :class:`FencedCommitter`. What is forgotten is below the newest decision, see :meth:`publish_all`."""
        newest = control.decode(self.load(step)).decided
        step.execute(self._statements.forget_markers(below=min(version, newest)))

    def is_passing(self, error: Exception) -> bool:
        """See :class:`FencedCommitter`: a deadlock, or a connection that the server or the network has ended."""
        state = getattr(error, "sqlstate", None)
        return _BROKEN in str(error) if state is None else state.startswith(_PASSING)

    # -- for callers ----------------------------------------------------------------------------------------------------

    def binding(self) -> Mapping[str, str]:
        """See :class:`FencedCommitter`: also the server, and the table, which is another one if somebody creates it anew."""
        with self._try("reading the table's identity"), self.step() as step:
            _, server, _, _ = self._facts(step)
            self._oid = read_table(step, self._settings.table).oid
        return {**super().binding(), "server": server, "table": str(self._oid)}

    def acquire(self, claim: Claim, seen: Owner | None) -> int:
        """See :class:`FencedCommitter`; creates the sink's own tables if they do not exist."""
        if not self._has_objects:
            with self._try("creating its tables"), self.step() as step:
                for statement in self._statements.create():
                    step.execute(statement)
        return super().acquire(claim, seen)

    def confirm(self, handles: Sequence[PostgresHandle], age_ms: float) -> None:
        """See :class:`FencedCommitter`: also that the table will take the rows, because after the decision it must."""
        super().confirm(handles, age_ms)
        with self._try("checking the table"), self.driving() as step:
            table = self._table(step)
            if any(handle.table != fingerprint(table) for handle in handles):
                raise RetriableError(
                    f"sink {self.name!r}: {self._settings.table} was altered while this batch was written. Nothing was decided, "
                    "and a new attempt rewrites it"
                )
            if handles and self._settings.mode == "upsert" and not self._settings.order_by:
                self._require_distinct(step, table, handles)

    def commit(
        self, handles: Sequence[PostgresHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[PostgresHandle, Evidence]:
        """See :class:`FencedCommitter`."""
        found = super().commit(handles, scan_start)
        self._drop_stages()
        return found

    def abort(self, handles: Sequence[PostgresHandle]) -> None:
        """See :class:`FencedCommitter`."""
        super().abort(handles)
        self._drop_stages()

    def recover_and_abort(self, decided: Collection[PostgresHandle]) -> None:
        """See :class:`FencedCommitter`."""
        super().recover_and_abort(decided)
        self._drop_stages()

    def close(self) -> None:
        """See :class:`FencedCommitter`."""
        self._database.close()

    # -- the small parts ------------------------------------------------------------------------------------------------

    def _facts(self, step: Connection) -> tuple[bool, str, int, str]:
        [facts] = step.execute(read_facts()).fetchall()
        return facts  # type: ignore[no-any-return]  # the statement's columns

    def _staged(self, step: Connection, handles: Sequence[PostgresHandle], *, unmarked: bool = False) -> dict[str, int]:
        """The rows of each slice that is there, as its task entered them."""
        names = [handle.transaction for handle in handles]
        return dict(step.execute(self._statements.find_slices(names, unmarked=unmarked)).fetchall())

    def _table(self, step: Connection) -> Table:
        """The table, which must be the one that the checkpoint is bound to."""
        table = read_table(step, self._settings.table)
        if self._oid not in {None, table.oid}:
            raise ConfigurationError(
                f"sink {self.name!r}: {self._settings.table} was dropped and created again, so the rows of earlier batches are "
                "gone. Nothing was decided. Rename the former table back; or use a new checkpoint and a new sink name"
            )
        return table

    def _insert(self, step: Connection, handles: Sequence[PostgresHandle]) -> None:
        """Copy the rows of stages into the table."""
        try:
            table = self._table(step)
        except ConfigurationError as error:
            raise psycopg.ProgrammingError(
                f"{self._settings.table} is gone, or another table has its name: rename the former table back"
            ) from error
        publishing = self._settings.decided(table, handles[0].columns)
        names = [handle.transaction for handle in handles]
        published = step.execute(self._statements.publish(names, publishing, handles[0].filled)).rowcount
        expected = sum(handle.rows for handle in handles)
        if self._settings.mode == "append" and published != expected:
            raise psycopg.DataError(
                f"{table.title} took {published} of {expected} rows: a trigger or a rule leaves some out"
            )

    def _whole(self, step: Connection, handles: Sequence[PostgresHandle]) -> list[PostgresHandle]:
        """The transactions whose rows are all there."""
        names = list(self._staged(step, handles))
        counted = dict(step.execute(self._statements.count(names)).fetchall()) if names else {}
        return [handle for handle in handles if counted.get(handle.transaction) == handle.rows]

    def _require_distinct(self, step: Connection, table: Table, handles: Sequence[PostgresHandle]) -> None:
        publishing = self._settings.publishing(table, handles[0].columns)
        names = [handle.transaction for handle in handles]
        row = step.execute(self._statements.find_repeated_key(names, publishing)).fetchone()
        if row is not None:
            *key, count = row
            shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._settings.key, key, strict=True))
            raise BadRecordError(
                f"sink {self.name!r}: {count} rows of this batch have the key {shown}, and nothing says which of them counts. "
                "Nothing was decided. Pass order_by=…, or reduce the batch to one row per key"
            )

    def _drop_stages(self) -> None:
        """Drop the stages that are published or rolled back. Best effort: somebody may read them, a backup for example."""
        with self._tidy("dropping stages"):
            while self._drop_some():
                pass

    def _drop_some(self) -> bool:
        """Drop some of them; return whether there may be more."""
        with self._database.transaction() as connection:
            find = self._statements.find_slices_with_marker(limit=_DROPPED_AT_ONCE)
            names = [name for (name,) in connection.execute(find)]
            for statement in self._statements.drop_stages(names, lock_timeout_ms=_DROP_LOCK_TIMEOUT_MS):
                connection.execute(statement)
        return len(names) == _DROPPED_AT_ONCE


def _one(connection: Connection, statement: Any) -> Any:
    row = connection.execute(statement).fetchone()
    return None if row is None else row[0]
