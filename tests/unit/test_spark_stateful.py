"""How many stores the tasks of a stateful operator must commit, and which plans show that a job has committed them."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.unit.cut_plans import CUT_SHORT
from twopc.errors import ConfigurationError
from twopc.integration.spark import state_reports
from twopc.integration.spark.operators import Commits, Operator
from twopc.integration.spark.state_reports import StateWarnings
from twopc.integration.spark.stateful import BatchState, StatefulOperators

PARTITIONS = 5
_COMMITTED = "numStateStoreInstances"


class Metrics:
    def __init__(self, *names: str) -> None:
        self._names = names

    def contains(self, name: str) -> bool:
        return name in self._names


class Demand:
    """The input distribution that an operator requires."""

    def apply(self, _: int) -> Demand:
        return self

    def requiredNumPartitions(self) -> Demand:  # noqa: N802 - Spark's name
        return self

    def isDefined(self) -> bool:  # noqa: N802 - Spark's name
        return True

    def get(self) -> int:
        return PARTITIONS


class Node:
    """A node of a physical plan without children."""

    def __init__(self, name: str, version: int | None = None) -> None:
        self._name = name
        self._version = version
        self.committed = 0

    def metrics(self) -> Metrics:
        return Metrics(_COMMITTED)

    def nodeName(self) -> str:  # noqa: N802 - Spark's name
        return self._name

    def longMetric(self, name: str) -> Node:  # noqa: N802 - Spark's name
        assert name == _COMMITTED
        return self

    def value(self) -> int:
        return self.committed

    def requiredChildDistribution(self) -> Demand:  # noqa: N802 - Spark's name
        return Demand()

    def stateFormatVersion(self) -> int:  # noqa: N802 - Spark's name
        if self._version is None:
            raise AssertionError("only a join has a state format version")
        return self._version

    def apply(self, place: int) -> Node | None:
        return None if place else self


class Running:
    """Stands in for ``RunningQuery``, and for Spark's plan of its batch."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.evaluations = 0

    @property
    def execution(self) -> Running:
        return self

    def executedPlan(self) -> Node:  # noqa: N802 - Spark's name
        return self._node

    def toRdd(self) -> Running:  # noqa: N802 - Spark's name
        return self

    def count(self) -> int:
        self.evaluations += 1
        self._node.committed += PARTITIONS * (4 if self._node._version in {1, 2} else 1)
        return 0


@pytest.mark.parametrize(
    "node",
    [
        Node("StreamingDeduplicate"),
        *(Node("StreamingSymmetricHashJoin", version) for version in (1, 2, 3, 4)),
    ],
    ids=lambda node: f"{node._name}-{node._version}",
)
def test_an_evaluated_batch_has_all_of_its_state_in_every_state_format(node: Node) -> None:
    """From version 3 on, the task of a join has one store with four column families, and not four stores."""
    query: Any = Running(node)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    assert state.complete()
    assert query.evaluations == 1


class Skipping(Running):
    """A plan whose evaluations commit only some of the stores, as if the others' rows were not read."""

    def __init__(self, node: Node, commits: int) -> None:
        super().__init__(node)
        self._commits = commits

    def count(self) -> int:
        self.evaluations += 1
        self._node.committed += self._commits
        return 0


@pytest.mark.parametrize("committed", [0, 3, PARTITIONS - 1, 2 * PARTITIONS + 1])
def test_the_stores_of_several_jobs_do_not_add_up_to_a_complete_state(committed: int) -> None:
    """The sink's job and the second evaluation skip the same partitions. Failed attempts may have committed any number."""
    node = Node("StreamingDeduplicate")
    query: Any = Skipping(node, PARTITIONS - 2)
    state = StatefulOperators().of_batch(query, 7, has_state=lambda: True)
    assert state is not None
    node.committed = committed
    with pytest.raises(
        ConfigurationError, match=r"batch 7, but StreamingDeduplicate .*No part .* is decided or visible"
    ):
        state.complete()


def test_an_evaluation_may_skip_a_stage_whose_stores_an_earlier_job_has_committed() -> None:
    """Spark reuses the shuffle behind an operator, so the operator's tasks do not run again."""
    node = Node("StreamingDeduplicate")
    query: Any = Skipping(node, 0)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    node.committed = PARTITIONS
    assert state.complete()


class Losing(Running):
    """A plan whose stateful operator is behind a shuffle. A part of the shuffle is lost before the next evaluation."""

    def count(self) -> int:
        self.evaluations += 1
        self._node.committed += 2 if self.evaluations == 1 else 0
        return 0


def test_a_stage_that_runs_again_only_in_part_does_not_count_as_a_plan_that_skips_partitions() -> None:
    """The earlier tasks wrote the rest of the state. Whether rows are mixed is a question for rule 6, and not in a replay."""
    node = Node("StreamingDeduplicate")
    query: Any = Losing(node)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    node.committed = PARTITIONS
    assert state.complete(is_visible=True)
    assert query.evaluations == 2


@pytest.mark.parametrize(
    ("committed", "message"),
    [
        (PARTITIONS - 3, "but StreamingDeduplicate has not written all of its state, .*join with an empty table"),
        (
            PARTITIONS - 2,
            "cannot tell whether StreamingDeduplicate has written all of its state .*job .* ran only some",
        ),
    ],
)
@pytest.mark.parametrize("is_failed", [False, True])
def test_a_stage_that_ran_again_in_part_may_still_have_skipped_partitions(
    committed: int, message: str, *, is_failed: bool
) -> None:
    """The first job and the two tasks that ran again may add up to the number of stores. It may be a job of the function."""
    node = Node("StreamingDeduplicate")
    query: Any = Losing(node)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    with contextlib.suppress(RuntimeError), state.watching(MagicMock()):
        node.committed = committed
        if is_failed:
            raise RuntimeError("a joined table is gone")
    with pytest.raises(ConfigurationError, match=message) as raised:
        state.complete(is_visible=True)
    assert ("cannot tell" in str(raised.value)) != ("so the next batch cannot start" in str(raised.value))


def test_a_plan_that_skips_partitions_is_blamed_although_a_job_has_failed() -> None:
    """Without the failure, the next start would end in the same way."""
    node = Node("StreamingDeduplicate")
    query: Any = Skipping(node, PARTITIONS - 2)
    state = StatefulOperators().of_batch(query, 7, has_state=lambda: True)
    assert state is not None
    with contextlib.suppress(RuntimeError), state.watching(MagicMock()):
        node.committed = PARTITIONS - 1
        raise RuntimeError("a joined table is gone")
    with pytest.raises(ConfigurationError, match=r"has not written all of its state, .*Move that part of the plan"):
        state.complete()


def test_two_operators_of_the_same_name_are_told_apart() -> None:
    """The first one's shuffle ran again in part, after enough tasks. The second one had not run before."""
    first, second = Node("StreamingDeduplicate"), Node("StreamingDeduplicate")

    class Both(Losing):
        def count(self) -> int:
            second.committed += PARTITIONS - second.committed
            return super().count()

    query: Any = Both(first)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    others: Any = Losing(second)
    other = StatefulOperators().of_batch(others, 0, has_state=lambda: True)
    assert other is not None
    state._commits.operators = [*state._commits.operators, *other._commits.operators]
    first.committed = PARTITIONS
    assert state.complete()
    assert query.evaluations == 2


def test_each_attempt_evaluates_the_state_again() -> None:
    """Rule 6 may have rejected the evaluation of the attempt before, because it mixed two runs of a shuffle."""
    query: Any = Running(Node("StreamingDeduplicate"))
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    for evaluations in (1, 2):
        state.begin()
        assert state.complete()
        assert not state.complete()
        assert query.evaluations == evaluations


def test_a_retry_that_reads_only_what_the_first_attempt_has_kept_leaves_the_state_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another evaluation of the batch could give a different state, which would not match the rows in the cache."""
    monkeypatch.setattr(BatchState, "_is_taken_once", lambda *_: True)
    monkeypatch.setattr(BatchState, "_is_in_cache", lambda *_: False)
    node, rows = Node("StreamingDeduplicate"), MagicMock()
    query: Any = Running(node)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    for commits, evaluations in ((PARTITIONS, 0), (0, 0), (0, 0), (2, 1), (0, 2)):
        state.begin()
        with state.watching(rows):
            node.committed += commits
        assert state.complete() == (query.evaluations == evaluations > 0), commits
        assert query.evaluations == evaluations


@pytest.fixture
def always_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each DataFrame contains the batch exactly once."""
    monkeypatch.setattr(BatchState, "_is_taken_once", lambda *_: True)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == state_reports.__name__]


@pytest.mark.usefixtures("always_taken")
@pytest.mark.parametrize(
    ("jobs", "is_repeated"),
    [
        ([PARTITIONS, 0], False),  # from a cache
        ([PARTITIONS, PARTITIONS], True),
        ([PARTITIONS, 2], True),
        ([2, PARTITIONS], True),  # the first DataFrame's rows come from another evaluation than the state
    ],
)
def test_dataframes_that_evaluate_the_batch_again_are_reported_once(
    jobs: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, is_repeated: bool
) -> None:
    monkeypatch.setattr(BatchState, "_is_in_cache", lambda *_: False)
    operators = StatefulOperators()
    for batch_id in (7, 8):
        node = Node("StreamingDeduplicate")
        query: Any = Running(node)
        query.count()  # by the function itself, before the call
        state = operators.of_batch(query, batch_id, has_state=lambda: True)
        assert state is not None
        for _ in range(2):  # attempts
            state.begin()
            for commits in jobs:
                with state.watching(MagicMock()):
                    node.committed += commits
        assert not state.complete()
    assert ["batch 7 more than once" in text and "persist" in text for text in said(caplog)] == [True] * is_repeated


@pytest.mark.usefixtures("always_taken")
def test_a_dataframe_that_the_driver_could_not_collect_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The tasks evaluate the DataFrame again. Both the rows and the state come from the tasks' job."""
    node = Node("StreamingDeduplicate")
    query: Any = Running(node)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    rows = MagicMock()
    for _ in range(2):
        with state.watching(rows):
            node.committed += PARTITIONS
    assert not state.complete()
    assert not said(caplog)


def begun(operators: StatefulOperators, batch_id: int) -> tuple[Node, Any, BatchState]:
    """Begin a batch of a query with one stateful operator. Return the operator, the query and the batch's state."""
    node = Node("StreamingDeduplicate")
    query: Any = Running(node)
    state = operators.of_batch(query, batch_id, has_state=lambda: True)
    assert state is not None
    return node, query, state


@pytest.mark.usefixtures("always_taken")
@pytest.mark.parametrize(
    ("is_checked", "is_same", "is_reported"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_batch_that_is_evaluated_after_the_call_is_reported_at_the_next_batch(
    caplog: pytest.LogCaptureFixture, *, is_checked: bool, is_same: bool, is_reported: bool
) -> None:
    """A call that failed has checked nothing, and another call for the same batch writes its state again."""
    operators = StatefulOperators()
    for number in range(3):
        node, query, state = begun(operators, 7 if is_same else 7 + number)
        with state.watching(MagicMock()):
            node.committed += PARTITIONS
        if is_checked:
            state.complete()
        query.count()
    expected = "batch 7 again after exactly_once() had checked"
    assert [expected in text for text in said(caplog)] == [True] * is_reported


@pytest.mark.usefixtures("always_taken")
@pytest.mark.parametrize("is_first", [False, True])
def test_a_replayed_dataframe_that_fails_partway_is_not_mistaken_for_an_evaluation_after_the_call(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """The other DataFrame has shown the whole state. The failed job has written some of the state again."""
    monkeypatch.setattr(BatchState, "_is_in_cache", lambda *_: False)
    operators = StatefulOperators()
    for batch_id in (7, 8):
        node, _, state = begun(operators, batch_id)
        for is_failed in (is_first, not is_first):
            with contextlib.suppress(RuntimeError), state.watching(MagicMock()):
                node.committed += 2 if is_failed else PARTITIONS
                if is_failed:
                    raise RuntimeError("a joined table is gone")
        assert not state.complete(is_visible=True)
    assert ["batch 7 more than once" in text for text in said(caplog)] == [True]


def test_a_second_call_for_a_batch_does_not_trust_the_first_calls_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call failed before rule 6 checked its shuffles. The function caught the error, and passes an empty DataFrame."""
    node, rows = Node("StreamingDeduplicate"), MagicMock()
    query: Any = Running(node)
    operators = StatefulOperators()
    for call, commits in enumerate((PARTITIONS, 0)):
        state = operators.of_batch(query, 0, has_state=lambda: True)
        assert state is not None
        monkeypatch.setattr(BatchState, "_is_taken_once", lambda *_, call=call: call == 0)
        monkeypatch.setattr(BatchState, "_is_in_cache", lambda *_: False)
        state.begin()
        with state.watching(rows):
            node.committed += commits
    assert state is not None
    assert state.complete()
    assert query.evaluations == 1


def test_a_state_format_that_keeps_the_first_evaluations_state_is_refused() -> None:
    query: Any = Running(Node("StreamingDeduplicate"))
    with pytest.raises(ConfigurationError, match=r"batch 0 .*checkpointFormatVersion is 2\."):
        StatefulOperators(2).of_batch(query, 0, has_state=lambda: True)


def leaves(name: str) -> MagicMock:
    """The only leaf of a plan, which reads RDD 1: the batch."""
    leaf = MagicMock(**{"nodeName.return_value": name, "rdd.return_value.id.return_value": 1})
    return MagicMock(**{"size.return_value": 1, "apply.return_value": leaf})


def state_of(plan: str) -> BatchState:
    execution = MagicMock(**{"toRdd.return_value.id.return_value": 1})
    execution.executedPlan().__str__.return_value = plan
    operators = [Operator("StreamingDeduplicate", PARTITIONS, MagicMock())]
    return BatchState(execution, Commits(0, operators), StateWarnings())


@pytest.mark.parametrize(
    ("plan", "is_shown"),
    [
        ("StreamingDeduplicate [id#3L]\n", True),
        ("*(1) GlobalLimit 5\n", False),
        *((cut, False) for cut in CUT_SHORT),
    ],
)
def test_a_filled_cache_shows_that_the_state_is_whole_unless_the_plan_may_end_early(
    plan: str, *, is_shown: bool
) -> None:
    frame, found = MagicMock(), leaves("InMemoryRelation")
    frame._jdf.queryExecution().withCachedData().collectLeaves.return_value = found
    cached = found.apply(0).cacheBuilder().cachedPlan()
    cached.toString.return_value = "*(1) Scan ExistingRDD[id#3L]\n"
    cached.collectLeaves.return_value = leaves("Scan ExistingRDD")
    assert state_of(plan)._is_in_cache([PARTITIONS], frame) == is_shown


@pytest.mark.parametrize(
    ("node", "is_taken_once"),
    [
        ("RepartitionByExpression [key#1], 2", True),
        ("RepartitionByExpression [key#1 ASC NULLS FIRST], 2", False),
        ("RepartitionByExpression [... 1 more fields], 2", False),  # spark.sql.debug.maxToStringFields is 0
        ("Project [key#1]", True),
        ("GlobalLimit 5\n+- LocalLimit 5", False),
        ("Offset 3", False),
        ("Tail 3", False),
    ],
)
def test_the_number_of_commits_proves_nothing_if_a_partition_may_be_computed_twice_or_skipped(
    node: str, *, is_taken_once: bool
) -> None:
    frame = MagicMock()
    plan = frame._jdf.queryExecution().analyzed()
    plan.toString.return_value = f"{node}\n+- LogicalRDD [key#1], false\n"
    plan.collectLeaves.return_value = leaves("LogicalRDD")
    assert state_of("")._is_taken_once(frame) == is_taken_once
