"""In the driver, commit batches to PostgreSQL. One transaction publishes all rows of a batch."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from twopc import control
from twopc.attempt import Evidence
from twopc.crash_points import crash_point
from twopc.fenced_committer import FencedCommitter
from twopc.sinks.postgres.errors import FAILURES, creating_tables, explained, is_passing, reason
from twopc.sinks.postgres.handle import PostgresHandle
from twopc.sinks.postgres.server import (
    read_server,
    require_usable,
    warn_of_asynchronous_standby,
    warn_of_publications,
)
from twopc.sinks.postgres.stages import Stages
from twopc.sinks.postgres.statements import Statements
from twopc.sinks.postgres.table import read_table
from twopc.sinks.postgres.transfer import Transfer
from twopc.sinks.postgres.votes import find_votes, finish_votes, open_votes, require_votes, version_of_vote, votes_of
from twopc.versions import NO_ATTEMPT, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import psycopg

    from twopc.attempt import Claim, Owner
    from twopc.control import Control
    from twopc.errors import TwoPhaseCommitError
    from twopc.observation import Observation
    from twopc.sinks.postgres.settings import PostgresSettings

    Connection = psycopg.Connection[Any]

logger = logging.getLogger(__name__)

_PROOFS: Final = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}


class PostgresCommitter(FencedCommitter[PostgresHandle, "Connection"]):
    """See :class:`FencedCommitter`.

    A step is a transaction that first locks the control record. So each step waits for the previous step, even if the previous
    driver has died and its backend is still running COMMIT. Therefore, a step sees only final results.
    """

    failures = FAILURES

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._statements = Statements(settings.schema, settings.name)
        self._transfer = Transfer(settings, self._statements)
        self._database = settings.database()
        self._stages = Stages(self._database, self._statements)
        self._has_objects = False
        self._has_started = False
        self._voted: list[str] = []  # the votes that this driver has prepared in its newest attempt
        # Other drivers may use other settings, and a late vote may arrive after the first sweep.
        self._may_have_votes = True

    # -- the store's hooks ----------------------------------------------------------------------------------------------

    def step(self) -> AbstractContextManager[Connection]:
        """See :class:`FencedCommitter`."""
        return self._database.transaction()

    def explain(self, error: Exception, what: str) -> TwoPhaseCommitError:
        """See :class:`FencedCommitter`."""
        return explained(error, what, is_start=not self._has_started)

    def reason(self, error: Exception) -> str:
        """See :class:`FencedCommitter`."""
        return reason(error)

    def check_store(self, step: Connection) -> None:
        """See :class:`FencedCommitter`. The other checks need a batch's columns; see :meth:`PostgresSink.check_schema`."""
        read_table(step, self._settings.table, locked=False)
        server = read_server(step)
        self._may_have_votes = server.slots > 0
        require_usable(server, self._settings)
        warn_of_asynchronous_standby(step, self._settings)
        warn_of_publications(step, self._settings)

    def load(self, step: Connection) -> bytes | None:
        """See :class:`FencedCommitter`. Return None if the sink's own tables do not exist yet."""
        return self._load(step, locked=True)

    def peek(self, step: Connection) -> bytes | None:
        """See :class:`FencedCommitter`."""
        return self._load(step, locked=False)

    @contextlib.contextmanager
    def observing(self) -> Iterator[Connection]:
        """See :class:`FencedCommitter`. In this step, the server rejects every write."""
        with self.step() as step:
            step.execute("SET TRANSACTION READ ONLY")
            yield step

    def swap(self, step: Connection, old: bytes | None, new: bytes) -> bool:
        """See :class:`FencedCommitter`."""
        return step.execute(self._statements.swap_control(old, new)).rowcount == 1

    def is_prepared(self, step: Connection, handle: PostgresHandle) -> bool:
        """See :class:`FencedCommitter`. A slice with a marker has already been published or rolled back."""
        return self._transfer.staged(step, [handle], unmarked=True).get(handle.transaction) == handle.rows

    def publish(self, step: Connection, handle: PostgresHandle, version: int) -> None:
        """See :class:`FencedCommitter`."""
        list(self.publish_all(step, [handle], version))

    def publish_all(
        self, step: Connection, handles: Sequence[PostgresHandle], version: int
    ) -> Iterator[PostgresHandle]:
        """See :class:`FencedCommitter`. Publish all transactions with one statement."""
        record = control.decode(self.load(step))
        is_newest = record.decided == version >= record.former_decided
        self._transfer.publish(step, handles, version, is_newest=is_newest)
        yield from handles

    def outcome(self, step: Connection, handle: PostgresHandle) -> Evidence:
        """See :class:`FencedCommitter`."""
        return _PROOFS.get(_one(step, self._statements.find_marker(handle.transaction)), Evidence.UNKNOWN)

    def roll_back(self, step: Connection, transaction: str, version: int) -> None:
        """See :class:`FencedCommitter`. :meth:`_drop_stages` drops the stage later."""
        step.execute(self._statements.insert_markers([transaction], version=version, state="aborted"))

    def pending(self, step: Connection) -> list[str]:
        """See :class:`FencedCommitter`. A slice is invisible until its task commits. A later sweep finds the slice."""
        return [name for (name,) in step.execute(self._statements.find_slices_without_marker())]

    def forget_before(self, step: Connection, version: int) -> None:
        """See :class:`FencedCommitter`.

        Forget only the markers of decisions before the newest decision; see :meth:`publish_all`.
        """
        newest = control.decode(self.load(step)).decided
        step.execute(self._statements.forget_markers(below=min(version, newest)))

    def is_passing(self, error: Exception) -> bool:
        """See :class:`FencedCommitter`."""
        return is_passing(error)

    @property
    def retry_ms(self) -> int:
        """See :class:`FencedCommitter`. A restart or a failover of the server may take as long as a publish."""
        return self._settings.timeout_ms

    # -- for callers ----------------------------------------------------------------------------------------------------

    def binding(self) -> Mapping[str, str]:
        """See :class:`FencedCommitter`. Add the table. A recreated table counts as a different table.

        The binding omits the server's identity, because ``pg_upgrade`` changes it, but keeps the tables' object ids.
        """
        with self._try("reading the table's identity"), self.step() as step:
            self._transfer.oid = read_table(step, self._settings.table, locked=False).oid
        return {**super().binding(), "table": str(self._transfer.oid)}

    def observed(
        self, step: Connection, record: Control, decided: Sequence[PostgresHandle], scan_start: Mapping[str, Any]
    ) -> Observation:
        """See :class:`FencedCommitter`. The leftovers include undecided votes, because these votes hold locks."""
        found = super().observed(step, record, decided, scan_start)
        table = str(read_table(step, self._settings.table, locked=False).oid)
        votes = find_votes(step, self.name, record)
        spared = votes_of(decided)
        return replace(
            found,
            bound={**found.bound, "table": table},
            leftovers=(*found.leftovers, *(vote for vote in votes if vote not in spared)),
            facts={"prepared transactions": ", ".join(votes)} if votes else {},
        )

    def acquire(self, claim: Claim, seen: Owner | None) -> int:
        """See :class:`FencedCommitter`. Create the sink's own tables if they do not exist."""
        if not self._has_objects:
            with self._try("creating its tables"), self.step() as step, creating_tables():
                for statement in self._statements.create():
                    step.execute(statement)
        return super().acquire(claim, seen)

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`FencedCommitter`. From now on, an error is a failure of the attempt, not of the start."""
        self._has_started = True
        return super().begin_attempt()

    def confirm(self, handles: Sequence[PostgresHandle], age_ms: float) -> None:
        """See :class:`FencedCommitter`. Also check that the table still accepts the rows, because a decision is final."""
        votes = votes_of(handles)
        if votes and votes == self._voted:  # voting again, or checking the table, would wait for the votes' own locks
            with self._try("checking its votes"), self.driving() as step:
                require_votes(step, votes, sink=self.name)
            return
        super().confirm(handles, age_ms)
        with self._try("checking the table"), self.driving() as step:
            table = self._transfer.table(step)
            self._transfer.require_unaltered(table, handles)
            if handles and self._settings.mode == "upsert" and not self._settings.order_by:
                self._transfer.require_distinct(step, table, handles)
        for vote in votes:
            with self._try("publishing the rows before the decision"):
                self._vote(vote, [handle for handle in handles if handle.vote == vote])
        self._voted = votes

    def commit(
        self, handles: Sequence[PostgresHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[PostgresHandle, Evidence]:
        """See :class:`FencedCommitter`."""
        found = super().commit(handles, scan_start)
        self._drop_stages()
        return found

    def commit_once(self, handles: Sequence[PostgresHandle], version: int) -> None:
        """See :class:`FencedCommitter`. Commit the votes first. If the batch has no vote, publish its stages."""
        if votes := votes_of(handles):
            # No driver holds a lock while a vote is committed. So record the decision first. After that, a fenced
            # driver can no longer do anything, and a driver that starts from an older checkpoint sees the decision.
            self._record_decision(version, lambda step: self._count_votes(step, handles, version))
            for _ in finish_votes(self._database, votes, "COMMIT"):
                crash_point("driver.committing")
        # This step writes the record after COMMIT PREPARED. If a failover loses COMMIT PREPARED, it loses this revision, too.
        super().commit_once(handles, version)

    def abort(self, handles: Sequence[PostgresHandle]) -> None:
        """See :class:`FencedCommitter`."""
        # Roll back even if this driver is fenced, because no other program uses these transaction names.
        with self._tidy("rolling back a vote"):
            for _ in finish_votes(self._database, votes_of(handles), "ROLLBACK"):
                pass
        super().abort(handles)
        self._drop_stages()

    def initialize_state(
        self,
        decided: Sequence[PostgresHandle],
        scan_start: Mapping[str, Any],
        spared: Sequence[PostgresHandle] = (),
        *,
        is_own: bool = True,
    ) -> Mapping[PostgresHandle, Evidence]:
        """See :class:`FencedCommitter`. End the votes first, because they hold locks that the commit may need."""
        self._commit_older_votes(version_of(scan_start or NO_ATTEMPT))
        self._sweep_votes([*decided, *spared])
        return super().initialize_state(decided, scan_start, spared, is_own=is_own)

    def recover_and_abort(self, decided: Collection[PostgresHandle]) -> None:
        """See :class:`FencedCommitter`."""
        self._sweep_votes(decided)
        super().recover_and_abort(decided)
        self._drop_stages()

    def close(self) -> None:
        """See :class:`FencedCommitter`."""
        self._database.close()

    # -- the small parts ------------------------------------------------------------------------------------------------

    def _load(self, step: Connection, *, locked: bool) -> bytes | None:
        if not self._has_objects:
            self._has_objects = bool(_one(step, self._statements.find_objects()))
        if not self._has_objects:
            return None
        found: bytes | None = _one(step, self._statements.load_control(locked=locked))
        return found

    def _vote(self, vote: str, handles: Sequence[PostgresHandle]) -> None:
        """Publish slices in a prepared transaction. Do not lock the control record, because a new driver needs it."""
        with self._database.transaction(prepared_as=vote) as step:
            self._transfer.vote(step, handles, self._highest_version)

    def _count_votes(self, step: Connection, handles: Sequence[PostgresHandle], version: int) -> None:
        """Record that the batch is complete if all of its votes are open. Only a person can still roll them back.

        A failover may lose everything after this step, or everything after COMMIT PREPARED. See :meth:`_commit_older_votes`.
        """
        votes = votes_of(handles)
        if all(handle.vote for handle in handles) and open_votes(step, votes) == votes:
            self._swapped(step, lambda record: self._with_proof(record, version))

    def _commit_older_votes(self, newest: int) -> None:
        """Commit an open vote that was decided before the ``newest`` decision.

        In this case, a failover has lost the vote's COMMIT PREPARED, but not the previous step, which recorded the decision.
        """
        with self._try("committing the vote of an earlier decision"):
            names = self._votes(lambda name, last: 0 < version_of_vote(name) == last < newest)
            for name in finish_votes(self._database, names, "COMMIT"):
                logger.warning(
                    "sink %r: a failover lost the commit of %s, so the driver has committed it again", self.name, name
                )

    def _sweep_votes(self, decided: Collection[PostgresHandle]) -> None:
        """Roll back every undecided vote of this driver and of previous drivers."""
        if not self._may_have_votes:
            return
        spared = votes_of(decided)
        with self._tidy("rolling back votes"):
            for _ in finish_votes(self._database, self._votes(lambda name, _: name not in spared), "ROLLBACK"):
                pass

    def _votes(self, is_meant: Callable[[str, int], bool]) -> list[str]:
        """Find the votes that ``is_meant`` selects by the vote's name and the version of the newest recorded decision."""
        with self.driving() as step:  # this step ensures that none of the votes belongs to a successor
            record = control.decode(self.load(step))
            found = find_votes(step, self.name, record)
        return [name for name in found if is_meant(name, max(record.decided, record.former_decided))]

    def _drop_stages(self) -> None:
        """Try to drop the published and rolled-back stages. If this fails, a later batch tries again."""
        with self._tidy("dropping stages"):
            self._stages.drop()


def _one(connection: Connection, statement: Any) -> Any:
    row = connection.execute(statement).fetchone()
    return None if row is None else row[0]
