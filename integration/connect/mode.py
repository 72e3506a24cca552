"""Access Spark through Spark Connect, from the process in which the server calls the user's function."""

from __future__ import annotations

import contextlib
import re
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import RetriableError
from twopc.integration.connect.caller import queries_with
from twopc.integration.connect.engine import ConnectEngine
from twopc.integration.connect.frames import (
    functions_in,
    has_barrier,
    is_by_name,
    other_data,
    plan_of_rows,
    references,
    require_no_subquery,
    require_own_rows,
    require_own_views,
    resolved,
)
from twopc.integration.connect.one_shuffle import Checksums, Ruled, require_one_shuffle
from twopc.integration.connect.parts import calls_python, require_parts
from twopc.integration.connect.plans import plan_of_frame
from twopc.integration.connect.query import batch_columns, local_files
from twopc.integration.connect.start import state_format
from twopc.integration.connect.state import ConnectState, StateFiles
from twopc.integration.connect.worker import called_batch
from twopc.integration.spark.budget import Budget
from twopc.integration.spark.checkpoint import planning_time_ms
from twopc.integration.spark.kept import Runs
from twopc.integration.spark.sorted_plans import may_be_sorted
from twopc.integration.spark.state_reports import LAST_FORMAT, tell_once, unfit_format
from twopc.integration.spark.task_numbers import depends_on_task

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from twopc.batch import Batch
    from twopc.engine import Engine
    from twopc.files import Files
    from twopc.integration.connect.plans import Plan
    from twopc.integration.connect.query import ConnectQuery
    from twopc.integration.connect.start import Start
    from twopc.integration.spark.frame import Rows
    from twopc.integration.spark.mode import Attempt
    from twopc.integration.spark.several import SinkFrame
    from twopc.progress import StateSize

_PAUSE_S: Final = 0.5
#: Finds the number of partitions in the plan of a range. This is the number of the cluster's slots unless
#: spark.default.parallelism sets another number.
_SPLITS: Final = re.compile(r"splits=(?:Some\()?(\d+)")
#: The same value as in ``twopc.integration.spark.slots``.
_TASKS_PER_SLOT: Final = 2


class ConnectMode:
    """See :class:`~twopc.integration.spark.mode.Mode`.

    Args:
        session: the query's session.
        query: the query from which the call came.
        start: what Spark showed just before the query started.
    """

    copies_functions = False

    def __init__(self, session: Any, query: ConnectQuery, start: Start) -> None:
        self._session = session
        self._query = query
        self._start = start
        self._first_batch = query.batch_id
        self._budget = Budget()
        self._slots = ConnectSlots(session)
        self._tell, self._tell_of_writers = tell_once(), tell_once()
        self._given: dict[str, Any] = {}  # the user's DataFrames in the current call

    @cached_property
    def _first_plan(self) -> Plan:
        """The plan of a batch. All batches of a run have the same stateful operators."""
        return self._query.plan()

    @cached_property
    def is_stateless(self) -> bool:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        return not (self._first_plan.keeps_state or self.open_files(self._query.checkpoint_location).names("state"))

    @property
    def output_mode(self) -> None:
        """See :class:`~twopc.integration.spark.mode.Mode`. Spark Connect does not show the output mode."""

    def open_files(self, location: str) -> Files:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        return local_files(location)

    def pause(self, pause_ms: int) -> None:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        ends_at = time.monotonic() + pause_ms / 1000
        while (left := ends_at - time.monotonic()) > 0:
            if not self._query.is_active:
                raise RetriableError(
                    "the query was stopped before it could retry the batch. No part of the batch is visible. Start the query "
                    "again to write the batch"
                )
            time.sleep(min(left, _PAUSE_S))

    @contextlib.contextmanager
    def resolved(self, frames: Sequence[SinkFrame]) -> Iterator[Sequence[SinkFrame]]:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        self._given = {one.name: one.frame for one in frames}
        with resolved(frames) as found:
            yield found

    def other_data(self, frame: DataFrame) -> str | None:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        return other_data(frame)

    def same_rows(self, frame: DataFrame, other: DataFrame) -> bool:
        """See :class:`~twopc.integration.spark.mode.Mode`. A view may have been replaced, and a function's variables changed."""
        if is_by_name(frame) or is_by_name(other):
            return False
        return frame is other or (not (calls_python(frame) or calls_python(other)) and frame.sameSemantics(other))

    def look(self, files: Files, frames: Sequence[SinkFrame], batch: Batch) -> tuple[StateSize, ...]:
        """See :class:`~twopc.integration.spark.mode.Mode`.

        There is no check for overwritten offsets, because Spark Connect does not show the offsets of the running query.
        """
        del files, frames, batch
        return ()

    def engine(self, files: Files, batch: Batch, attempt: Attempt) -> Engine:
        """See :class:`~twopc.integration.spark.mode.Mode`."""
        running = frozenset(str(query.runId) for query in self._session.streams.active)
        return ConnectEngine(
            batch=attempt.rows,
            sinks=attempt.sinks,
            # The tasks' workers outlive this process, so they identify this process's runs by the session.
            runs=Runs(self._query.run_id, running | {self._query.run_id}, self._session.session_id),
            shuffles=attempt.shuffles,
            slots=self._slots,
            staging=attempt.staging,
            way=attempt.way,
            budget=self._budget,
            timeout_ms=attempt.options.checkpoints.timeout_ms,
            max_writers=attempt.options.checkpoints.max_writers,
            may_be_sorted=self._may_be_sorted,
            depends_on_task=self._depends_on_task,
            tell=self._tell_of_writers,
            kept_since_ms=lambda: self._kept_since_ms(files, batch, attempt),
            state=self._state(files, batch),
            require_sound=lambda: self._require_sound(batch, attempt),
        )

    def _require_sound(self, batch: Batch, attempt: Attempt) -> None:
        require_no_subquery(batch.batch_id, attempt.options.select)
        named = self._named(attempt)
        plans = {name: plan for name, (plan, _) in named.items()}
        require_own_views(batch.batch_id, plans, self._start.views)
        self._require_own_rows(batch, named)
        require_parts(batch.batch_id, self._given, {name: plan.analyzed for name, plan in plans.items()})
        if attempt.options.checkpoints.deterministic_plan or not isinstance(attempt.shuffles, Ruled):
            return  # the user asserts that the rows cannot differ, or the jobs are checked after they have run
        require_one_shuffle(
            batch.batch_id,
            self._query.plan(),
            self._plans(attempt),
            lambda: (self._start.checksums, Checksums.of(self._session)),
        )

    def _named(self, attempt: Attempt) -> dict[str, tuple[Plan, Counter[str]]]:
        """Return the plan and the references of each DataFrame that names a table or a view."""
        named = [rows for rows in attempt.rows if is_by_name(self._given[rows.name])]
        plans = {rows.name: plan_of_frame(rows.source) for rows in named}
        return {name: (plan, references(self._given[name], plan.analyzed)) for name, plan in plans.items()}

    def _require_own_rows(self, batch: Batch, named: Mapping[str, tuple[Plan, Counter[str]]]) -> None:
        if named:
            columns = batch_columns()
            require_own_rows(
                batch.batch_id,
                self._query.plan(),
                named,
                columns,
                lambda: queries_with(columns, self._session, self._query.run_id),
            )

    def _plans(self, attempt: Attempt) -> list[Plan]:
        return [self._plan(rows) for rows in attempt.rows]

    def _plan(self, rows: Rows) -> Plan:
        called = called_batch()
        if called is None:
            raise AssertionError("the caller has already been found")
        return plan_of_rows(rows.frame(), self._given[rows.name], called.frame)

    def _may_be_sorted(self, rows: Rows) -> bool:
        plan = self._plan(rows)
        return may_be_sorted(plan.text, lambda: self._query.plan().text, lambda: plan.hides_rows)

    def _depends_on_task(self, rows: Rows) -> bool:
        given = self._given[rows.name]  # a view would hide the functions
        return has_barrier(given) or depends_on_task(functions_in(given))

    def _kept_since_ms(self, files: Files, batch: Batch, attempt: Attempt) -> float | None:
        frames = self._plans(attempt)
        is_kept = any(plan.keeps_data for plan in (self._query.plan(), *frames))
        # For example, an RDD's rows may come from a broadcast table.
        is_hidden = any(plan.hides_rows or plan.may_replace_batch for plan in frames)
        if not (is_kept or is_hidden):
            return None
        # An earlier run may have stored the first batch's time, on another host or before the clock was set back.
        return 0 if batch.batch_id == self._first_batch else planning_time_ms(files, batch.batch_id)

    def _state(self, files: Files, batch: Batch) -> ConnectState | None:
        called = called_batch()
        if self.is_stateless or called is None:
            return None
        used = max(self._start.state_format, state_format(self._session))
        if used > LAST_FORMAT:
            raise unfit_format(batch.batch_id, used)
        is_cached = plan_of_frame(called.frame).reads_cache
        state = StateFiles(files, self._first_plan.operators_without_keys)
        return ConnectState(batch.batch_id, called.frame, state, self._tell, is_cached=is_cached)


class ConnectSlots:
    """The cluster's task slots.

    Args:
        session: the query's session.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def most_writers(self) -> int | None:
        """Return the maximum number of tasks that write one DataFrame of a batch; see ``Slots``."""
        found = _SPLITS.search(self._session.range(1)._explain_string())  # noqa: SLF001 - the public method only prints the plan
        return _TASKS_PER_SLOT * int(found[1]) if found else None
