"""A start checks which query drove the sink last before it fences any driver (rules 10 and 11)."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from twopc.batch import Batch
from twopc.errors import DecisionLogDamagedError, RefusedStartError
from twopc.log_view import fold
from twopc.override import Overrides
from twopc.ownership import require_same_log_owner, require_same_owner
from twopc.records import Acquired, Begin, LogContents, LogEntry, Record
from twopc.registers import RegisterLog
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

OURS, THEIRS, THIRD = "query-a", "query-b", "query-c"
CHECKPOINT = Batch(OURS, 0, (), lambda _: None)
LOG, ELSEWHERE = "ledger-s", "ledger-t"
CLUSTER, ANOTHER = "cluster-1", "cluster-2"


def refused(*, when: bool, case: str = "name in use") -> Any:
    return (
        pytest.raises(RefusedStartError, check=lambda error: error.case == case) if when else contextlib.nullcontext()
    )


def acquired(query_id: str, deciding_log: str = ELSEWHERE, deciding_cluster: str = "") -> Acquired:
    log: Any = {"deciding_log": deciding_log, "deciding_cluster": deciding_cluster}
    return Acquired(query_id=query_id, run="r", driver="d", at_ms=0, **log)


def begun(query_id: str) -> Begin:
    return Begin(query_id=query_id, first_batch=0, prior_offsets=())


def setup(
    ended: AbstractSet[str], participants: Any = None, log: Any = None, bound: AbstractSet[str] = frozenset()
) -> Any:
    settings = Settings(overrides=Overrides(end_query_ids=ended))
    binding = SimpleNamespace(sinks=bound)
    return SimpleNamespace(settings=settings, participants=participants, log=log, binding=binding)


def start(
    *records: Record, ended: AbstractSet[str] = frozenset(), is_deciding: bool = False, log_start: int = 0
) -> None:
    """Start a query whose only sink has a log with these records; it decides there or in another log."""
    contents = LogContents(log_start, tuple(LogEntry(at, record) for at, record in enumerate(records)))
    log: Any = SimpleNamespace(name=LOG, cluster=CLUSTER, inspect=lambda: contents)
    another: Any = SimpleNamespace(name=ELSEWHERE)
    participants: Any = SimpleNamespace(logs=lambda: {"s": log}, decode_decided=lambda _: {})
    require_same_log_owner(setup(ended, participants, log if is_deciding else another), fold(contents), CHECKPOINT)


@pytest.mark.parametrize("is_deciding", [True, False])
@pytest.mark.parametrize(
    ("records", "is_refused"),
    [
        ([], False),
        ([acquired(OURS)], False),
        ([acquired(THEIRS)], True),
        ([acquired(OURS), acquired(THEIRS)], True),
        ([acquired(THEIRS), acquired(OURS)], False),
    ],
    ids=["nobody", "this query", "another", "another since", "this one since"],
)
def test_a_sink_last_driven_by_another_query_is_refused(
    records: list[Record], *, is_refused: bool, is_deciding: bool
) -> None:
    with refused(when=is_refused):
        start(*records, is_deciding=is_deciding)


@pytest.mark.parametrize(
    ("ended", "is_refused"),
    [({THEIRS}, False), ({THIRD}, True), ({OURS}, True), (set(), True), ({THIRD, THEIRS}, False)],
)
def test_only_end_query_with_the_last_owners_id_releases_a_sink(ended: set[str], *, is_refused: bool) -> None:
    with refused(when=is_refused):
        start(acquired(THEIRS), ended=ended)


@pytest.mark.parametrize("query_id", [OURS, THEIRS])
def test_a_log_with_decisions_cannot_be_replaced_by_another_log(query_id: str) -> None:
    """A driver that decides elsewhere is bound to that log, so it would not find this log's decisions again."""
    with refused(when=True, case="binding" if query_id == OURS else "name in use"):
        start(acquired(query_id, LOG), begun(query_id))
    start(acquired(query_id, LOG), begun(query_id), is_deciding=True)  # here the start checks the begin record
    start(acquired(query_id, LOG))


def test_no_override_moves_a_querys_own_decisions_to_another_log() -> None:
    """Its binding is missing. With ``EndQuery`` for itself, it would write its batches again."""
    with refused(when=True, case="binding"):
        start(acquired(OURS, LOG), begun(OURS), ended={OURS})


@pytest.mark.parametrize(("last", "named"), [(OURS, [THEIRS]), (THEIRS, [THEIRS]), (THIRD, [THEIRS, THIRD])])
def test_a_log_is_released_by_the_query_whose_decisions_it_contains(last: str, named: list[str]) -> None:
    """A driver of another query that took it over may have died before it decided anything, and may be this query's."""
    records: list[Record] = [begun(THEIRS), acquired(last, LOG)]
    for one in named:
        with pytest.raises(RefusedStartError, match=rf"override=(\[.*)?EndQuery\('{one}'\)"):
            start(*records, ended={*named} - {one})
    start(*records, ended={*named})


def test_a_damaged_log_may_hide_the_decision_of_a_query_that_ends() -> None:
    """No driver has truncated its head. After this query has taken the log over, the log hides nothing."""
    with pytest.raises(DecisionLogDamagedError, match=f"the decision log {LOG} is damaged"):
        start(acquired(THEIRS), ended={THEIRS}, log_start=1)
    start(acquired(OURS), log_start=1)


def test_the_message_repeats_the_queries_that_the_user_ends_already() -> None:
    with pytest.raises(RefusedStartError, match=re.escape(f"override=[EndQuery({THIRD!r}), EndQuery({THEIRS!r})]")):
        start(acquired(THEIRS), ended={THIRD})


def test_the_message_says_where_the_checkpoint_must_begin() -> None:
    """Spark has already planned its first batch with the option ``startingOffsets``."""
    begin = Begin(query_id=THEIRS, first_batch=4, prior_offsets=("there",))
    with pytest.raises(RefusedStartError, match=r"another, empty checkpoint") as shown:
        start(begin, acquired(THEIRS, LOG))
    assert f"query {THEIRS}'s last decided batch (batch 3: there)" in str(shown.value)
    with pytest.raises(RefusedStartError, match=r"another, empty checkpoint") as unknown:
        start(begin, acquired(THIRD))
    assert "there" not in str(unknown.value), "these are the offsets of another query"


@pytest.mark.parametrize(("cluster", "is_refused"), [(CLUSTER, False), ("", False), (ANOTHER, True)])
def test_a_log_with_the_same_name_on_another_cluster_counts_as_another_log(cluster: str, *, is_refused: bool) -> None:
    """Its decisions are not in the sink's own log, so a start that only reads this log would sweep what is decided."""
    with refused(when=is_refused):
        start(acquired(THEIRS, LOG, cluster), is_deciding=True)


def test_a_log_named_like_the_one_in_a_checkpoint_does_not_contain_that_checkpoints_decisions() -> None:
    """Decisions in a checkpoint are on no cluster. A start that took them for this log's would find none, and sweep."""
    contents = LogContents(0, (LogEntry(0, acquired(THEIRS, RegisterLog.name)),))
    log: Any = SimpleNamespace(name=RegisterLog.name, cluster=CLUSTER, inspect=lambda: contents)
    participants: Any = SimpleNamespace(logs=lambda: {"s": log})
    with refused(when=True):
        require_same_log_owner(setup(set(), participants, log), fold(contents), CHECKPOINT)


@pytest.mark.parametrize(
    ("last", "named", "is_refused"),
    [
        (None, None, False),
        (OURS, None, False),
        (THEIRS, None, True),
        (THEIRS, THEIRS, False),
        (THEIRS, THIRD, True),
    ],
)
def test_a_sink_without_a_log_stores_its_last_owner_itself(
    last: str | None, named: str | None, *, is_refused: bool
) -> None:
    drove = {"nobody's": None, "s": last}
    with refused(when=is_refused):
        require_same_owner(setup({named} if named else set()), drove, CHECKPOINT)


@pytest.mark.parametrize("bound", [set(), {"s"}], ids=["a new checkpoint", "an old checkpoint"])
def test_an_old_checkpoint_may_return_only_if_the_other_query_has_decided_nothing(bound: set[str]) -> None:
    """Otherwise, both queries may have read the same input, and the rows would be written twice."""
    with pytest.raises(RefusedStartError) as refused_start:
        require_same_owner(setup(frozenset(), bound=bound), {"s": THEIRS}, CHECKPOINT)
    assert ("never start this checkpoint again" in str(refused_start.value)) == bool(bound)
