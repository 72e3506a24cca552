"""The driver's side of an HBase sink: take over, confirm, apply and prove, sweep."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from sinks.hbase import staging
from sinks.hbase.apply import Applier
from sinks.hbase.control import Control, State
from sinks.hbase.errors import FAILURES, AbsentTableError, RemoteError, translate
from sinks.hbase.fence import Fence, state_of, top_of
from sinks.hbase.messages import name_parts
from sinks.hbase.preflight import require_usable
from sinks.hbase.writer import HBaseHandle
from twopc.committer import SinkCommitter
from twopc.crash_points import crash_point
from twopc.errors import RetriableError
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sinks.hbase.row_ops import Op
    from sinks.hbase.sink import HBaseSink
    from twopc.attempt import Claim

logger = logging.getLogger(__name__)

T = TypeVar("T")


class HBaseCommitter(SinkCommitter[HBaseHandle]):
    """See :class:`SinkCommitter`."""

    def __init__(self, sink: HBaseSink) -> None:
        self._sink = sink
        self._table = sink.staging_table
        self._link = sink.link()
        self._control = Control(self._link, table=self._table, sink=sink.name)
        self._fence = Fence(self._link, table=self._table, sink=sink.name)
        self._applier = Applier(self._link, self._fence, table=self._table, sink=sink.name)
        self._run = ""
        self._seen: int | None = None
        self._driver_epoch = -1
        self._last_top = 0
        self._blockers: list[str] = []

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`: the sink's id in its own table, which goes where its data goes."""
        return {"id": self._do("reading the sink's id", self._read_control).id}

    def inspect(self) -> str | None:
        """See :class:`SinkCommitter`: the tables, and who drove the sink last."""
        names = [self._sink.table, self._table]
        schemas = self._do("reading the tables' schemas", lambda: self._link.cluster.describe(names))
        require_usable(self._sink, schemas)
        state = self._do("reading who drove it", self._read_control)
        # Once: a later look could show a successor, whom a repeated take-over must not throw out.
        if self._seen is None:
            self._seen = state.driver_epoch
        return state.query_id or None

    def has_newer_decision(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`."""
        return self._do("reading its newest decision", self._read_control).decided > int(scan_start.get("base", 0))

    def acquire(self, claim: Claim) -> int:
        """See :class:`SinkCommitter`."""
        if self._seen is None:
            raise AssertionError("inspect comes first")
        seen = self._seen
        self._make_table()
        state = self._do("taking over", lambda: self._control.acquire(claim, seen=seen))
        self._run = claim.run
        if state.driver_epoch != self._driver_epoch:
            self._driver_epoch = state.driver_epoch
            crash_point("driver.fenced")
        return self._driver_epoch

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`SinkCommitter`: the attempt's version, above all that is in the tables, and the time in ms."""

        def reserve() -> int:
            return self._control.reserve(self._run, above=max(self._last_top, self._fence.read().top))

        return {"base": self._do("beginning an attempt", reserve)}

    def confirm(self, handles: Sequence[HBaseHandle], age_ms: float) -> None:
        """See :class:`SinkCommitter`: every chunk is there, by the digest that was written in one step with it."""
        del age_ms  # what is staged does not expire
        answers = self._link.ask([staging.look_at_digests(self._table, self._row(handle)) for handle in handles])
        for handle, answer in zip(handles, answers, strict=True):
            if isinstance(answer, Exception):
                raise translate(answer, self._what(f"confirming {handle.transaction}")) from answer
            if staging.fold(staging.digests_of(answer)) != handle.checksum:
                raise RetriableError(f"{handle.transaction} cannot be decided: it is not whole any more")

    def commit(self, handles: Sequence[HBaseHandle], scan_start: Mapping[str, Any]) -> dict[HBaseHandle, Evidence]:
        """See :class:`SinkCommitter`: one slice after the other, each that is whole."""
        base = int(scan_start["base"])
        self._blockers = []
        self._last_top = max(self._last_top, top_of(handles, base))
        try:
            self._control.note(self._run, base)
            self._fence.raise_to(base, top_of(handles, base))
            states = self._look(handles, base)
            for handle in handles:
                # A slice of which something is missing is not applied in part: it may be proven lost and be written anew.
                if states[handle] == "WHOLE":
                    self._apply(handle, base)
                crash_point("driver.committing")
                if handle.operation == "APPEND" and self._blockers:
                    break  # what the next tasks append comes behind what is still to come of this one
        except FAILURES as error:
            self._blockers.append(self._what(f"HBase does not answer: {error}"))
        found = self.evidence(handles, scan_start)
        done = [handle for handle, evidence in found.items() if evidence is Evidence.COMMITTED]
        self._remove([self._row(handle) for handle in done], "removing what is applied")
        return found

    def blockers(self) -> Sequence[str]:
        """See :class:`SinkCommitter`."""
        return self._blockers

    def abort(self, handles: Sequence[HBaseHandle]) -> None:
        """See :class:`SinkCommitter`."""
        self._remove([self._row(handle) for handle in handles], "aborting")

    def evidence(self, handles: Sequence[HBaseHandle], scan_start: Mapping[str, Any]) -> dict[HBaseHandle, Evidence]:
        """See :class:`SinkCommitter`: by the progress that is noted when a chunk's last row has answered."""
        base = int(scan_start["base"])
        try:
            states = self._look(handles, base)
            return {handle: self._judge(handle, states[handle], base) for handle in handles}
        except FAILURES as error:
            self._blockers.append(self._what(f"HBase does not answer: {error}"))
            return dict.fromkeys(handles, Evidence.UNKNOWN)

    def initialize_state(
        self, decided: Sequence[HBaseHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[HBaseHandle, Evidence]:
        """See :class:`SinkCommitter`; later versions go above the last decision's, whatever the clock says."""
        self._last_top = top_of(decided, int(scan_start.get("base", 0)))
        return super().initialize_state(decided, scan_start)

    def recover_and_abort(self, decided: Collection[HBaseHandle]) -> None:
        """See :class:`SinkCommitter`: slices up to one's own incarnation that nobody has decided."""
        spared = {self._row(handle) for handle in decided}
        try:
            found = self._link.scan(self._table, staging.slices_prefix(self._sink.name), staging.STATE)
            rows = [result.cell[0].row for result in found]
        except FAILURES as error:
            self._report("sweeping", error)
            return
        orphans = [row for row in rows if row not in spared and staging.driver_epoch_of(row) <= self._driver_epoch]
        if orphans:
            crash_point("driver.sweeping")
            self._remove(orphans, "sweeping")

    def close(self) -> None:
        """See :class:`SinkCommitter`."""
        self._link.close()

    # -- the steps' small parts ----------------------------------------------------------------------------------------

    def _apply(self, handle: HBaseHandle, base: int) -> None:
        failed = self._applier.apply(handle, base)
        self._blockers += [self._what(f"{handle.transaction} is not applied: {one}") for one in failed]

    def _look(self, handles: Sequence[HBaseHandle], base: int) -> dict[HBaseHandle, str]:
        """How it stands with each slice, in a word."""
        # The slices first: what is committed in between is removed only after that is noted.
        answers = self._link.ask([staging.look_at_digests(self._table, self._row(handle)) for handle in handles])
        progress = self._fence.read()
        found = {}
        for handle, answer in zip(handles, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            is_whole = len(staging.digests_of(answer)) == handle.chunks
            found[handle] = state_of(handle, progress, base, is_whole=is_whole)
        return found

    def _judge(self, handle: HBaseHandle, state: str, base: int) -> Evidence:
        if state == "COMMITTED":
            return Evidence.COMMITTED
        if state == "STALE":
            if self._control.read().run != self._run:
                raise self._control.fenced()
            self._blockers.append(
                self._what(
                    f"{handle.transaction}: there was a later decision than version {base}, so this checkpoint is older"
                )
            )
        elif state == "LOST":
            # A paused driver that wakes could still find a part of it, and begin.
            self._fence.bury(handle.uuid, base)
            if handle.uuid in self._fence.read().buried:
                self._remove([self._row(handle)], "removing what is lost")
                return Evidence.ABORTED
        elif state == "TORN":
            self._blockers.append(self._what(f"{handle.transaction} is applied in part, and the rest is gone"))
        return Evidence.UNKNOWN

    def _read_control(self) -> State:
        try:
            return self._control.read()
        except AbsentTableError:
            return State()  # it comes with the first take-over

    def _make_table(self) -> None:
        """Make the sink's own table where there is none. Whoever comes second, or asks again, finds it."""
        cluster = self._link.cluster

        def make() -> None:
            if self._table not in cluster.describe([self._table]):
                with contextlib.suppress(RemoteError):  # perhaps another driver makes it now; what is wrong shows below
                    cluster.ask_master(lambda master: master.create_table(*name_parts(self._table), staging.families()))
            try:
                cluster.region_of(self._table, b"")
            except AbsentTableError as error:
                raise ConnectionError(f"{error} yet") from error

        self._do("making its own table", make)

    def _remove(self, rows: Sequence[bytes], what: str) -> None:
        ops: list[Op] = [staging.remove_slice(self._table, row) for row in rows]
        for answer in self._link.ask(ops):
            if isinstance(answer, Exception):
                self._report(what, answer)
                return

    def _do(self, what: str, step: Callable[[], T]) -> T:
        try:
            return self._link.insist(step)
        except FAILURES as error:
            raise translate(error, self._what(what)) from error

    def _row(self, handle: HBaseHandle) -> bytes:
        return handle.row(self._sink.name)

    def _what(self, text: str) -> str:
        return f"sink {self._sink.name!r}, {text}"

    def _report(self, what: str, error: Exception) -> None:
        logger.warning("sink %r: %s is incomplete and will be repeated: %s", self._sink.name, what, error)
