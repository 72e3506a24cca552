"""The whole protocol, played by a coordinator over a sink in memory and write-once registers on disk."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.unit.fake_sink import LINEAGE, Cluster, Crash, FakeStaging, OwnLog, Query, all_rows, rows_of
from twopc import faults
from twopc.checkpoint import Permits
from twopc.coordinator import Settings
from twopc.decision import Begin, Decision, Repair, TakeOver
from twopc.errors import (
    BadRecordError,
    CommitBlockedError,
    ConfigurationError,
    DecisionInDoubtError,
    DecisionLogDamagedError,
    FencedError,
    InDoubtError,
    RefusedStartError,
    RetriableError,
)
from twopc.faults import InjectedFault, arm
from twopc.files import LocalFiles
from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OTHER = "lineage-b"
DRIVER_POINTS = [name for name in faults.POINTS if name.startswith("driver.")]


def records(cluster: Cluster, kind: type) -> list[object]:
    return [entry.record for entry in RegisterLog(cluster.files).inspect().entries if isinstance(entry.record, kind)]


def fingerprint(cluster: Cluster) -> dict[str, bytes]:
    root = cluster.files.location
    files = LocalFiles(root)
    names = [*files.names(""), *(f"registers/{name}" for name in files.names("registers"))]
    return {name: files.read(name) or b"" for name in names if name != "registers"}


def die_at(cluster: Cluster, query: Query, point: str, batch: int, *, passage: int = 1) -> None:
    arm(point, cluster.world.crash, passage=passage)
    with pytest.raises(Crash):
        query.run(batch)
    faults.disarm()


def fail() -> None:
    raise InjectedFault("as armed")


# -- the plain flow ----------------------------------------------------------------------------------------------------


def test_the_first_batch_becomes_visible_and_opens_the_lineage(cluster: Cluster) -> None:
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)
    (begin,) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert (begin.lineage, begin.first_batch, begin.prior_offsets, begin.ends) == (LINEAGE, 0, (), None)


def test_each_batch_is_decided_once_by_one_take_over(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0, 1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert [d.batch for d in records(cluster, Decision) if isinstance(d, Decision)] == [0, 1, 2]
    assert len(records(cluster, TakeOver)) == 1
    assert query.engine.evaluated == 0


def test_a_restart_goes_on_with_the_next_batch(cluster: Cluster) -> None:
    cluster.start().run(0)
    cluster.start().run(1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_a_replayed_batch_is_evaluated_once_and_not_written_again(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    query = cluster.start()
    query.run(1)
    assert (query.engine.evaluated, len(query.engine.works)) == (1, 0)
    query.run(2)
    assert query.engine.evaluated == 1
    assert cluster.store.visible() == all_rows(0, 1, 2)


def test_a_batch_without_rows_is_a_decision_without_handles(cluster: Cluster) -> None:
    query = cluster.start()
    query.engine.rows = {0: [], 1: []}
    query.run(0)
    query.engine.rows = {}
    query.run(1)
    query.engine.rows = None
    query.run(2)
    decisions = [d for d in records(cluster, Decision) if isinstance(d, Decision)]
    assert [[task.handles for task in decision.tasks] for decision in decisions[:2]] == [[{}, {}], []]
    assert cluster.store.visible() == all_rows(2)
    again = cluster.start()
    again.run(2)
    assert again.engine.evaluated == 1


def test_a_settled_batch_leaves_nothing_pending(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    assert cluster.store.pending() == []


def test_settled_through_is_the_last_batch_proven_in_this_lineage(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0, 1)
    assert [work.settled_through for work in query.engine.works] == [-1, 0]
    restarted = cluster.start()
    restarted.run(2)
    assert [work.settled_through for work in restarted.engine.works] == [1]
    ending = cluster.start(settings=Settings(permits=Permits(end_lineage=LINEAGE)))
    ending.run(0, lineage=OTHER)
    assert [work.settled_through for work in ending.engine.works] == [-1]


def test_no_two_attempts_have_one_name(cluster: Cluster) -> None:
    first, second = cluster.start(), cluster.start()
    first.engine.failures = [RetriableError("once")]
    first.run(0, 1)
    second.run(2)
    attempts = [work.attempt for work in first.engine.works + second.engine.works]
    assert len(set(attempts)) == len(attempts) == 4
    assert attempts == sorted(attempts)


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", faults.POINTS)
def test_every_row_is_visible_once_after_a_crash_at(point: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    die_at(cluster, cluster.start(), point, 1)
    query = cluster.start()
    query.run(1)
    assert query.engine.evaluated + len(query.engine.works) == 1
    query.run(2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


@pytest.mark.parametrize("point", faults.POINTS)
def test_every_row_is_visible_once_after_a_crash_in_the_first_batch_at(point: str, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), point, 0)
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)


@pytest.mark.parametrize("point", [name for name in faults.POINTS if name != "driver.deciding"])
def test_every_row_is_visible_once_after_an_error_at(point: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    arm(point, fail)
    with pytest.raises(InjectedFault):
        cluster.start().run(1)
    cluster.start().run(1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


def test_a_decision_that_is_found_after_an_unclear_write_counts(cluster: Cluster) -> None:
    arm("driver.deciding", fail)
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)


@pytest.mark.parametrize("second", faults.POINTS)
@pytest.mark.parametrize("first", faults.POINTS)
def test_a_crash_during_recovery_from_a_crash_does_no_harm(first: str, second: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    die_at(cluster, cluster.start(), first, 1)
    arm(second, cluster.world.crash)
    try:
        cluster.start().run(1)
    except Crash:
        faults.disarm()
        cluster.start().run(1)
    faults.disarm()
    cluster.start().run(2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


@pytest.mark.parametrize("passage", [1, 2, 3])
def test_a_commit_that_died_halfway_is_finished_by_the_restart(passage: int, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0, passage=passage)
    assert len(cluster.store.visible()) == 2 * passage
    query = cluster.start()
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert (query.engine.evaluated, query.engine.works) == (1, [])


def test_a_decided_batch_is_committed_before_the_next_one_is_written(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    assert cluster.store.visible() == []
    cluster.start().run(1)  # the engine has gone on without a replay
    assert cluster.store.visible() == all_rows(0, 1)


# -- which batch this is -----------------------------------------------------------------------------------------------


def _rewound(query: Query) -> None:
    query.run(0)


def _copied_same_batch(query: Query) -> None:
    query.run(2, history="elsewhere")


def _copied_next_batch(query: Query) -> None:
    query.run(3, history="elsewhere")


def _gap(query: Query) -> None:
    query.run(4)


def _new_lineage(query: Query) -> None:
    query.run(0, lineage=OTHER)


REFUSED: dict[str, Callable[[Query], None]] = {
    "rewound": _rewound,
    "copied": _copied_same_batch,
    "copied ": _copied_next_batch,
    "gap": _gap,
    "new lineage": _new_lineage,
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_start_changes_nothing_and_fences_nobody(case: str, cluster: Cluster) -> None:
    healthy = cluster.start()
    healthy.run(0, 1, 2)
    before, incarnation, sweeps = fingerprint(cluster), cluster.store.incarnation, cluster.store.sweeps
    with pytest.raises(RefusedStartError) as refused:
        REFUSED[case](cluster.start())
    assert refused.value.case == case.strip()
    assert fingerprint(cluster) == before
    assert (cluster.store.incarnation, cluster.store.sweeps) == (incarnation, sweeps)
    healthy.run(3)
    assert cluster.store.visible() == all_rows(0, 1, 2, 3)


def test_a_checkpoint_older_than_the_sink_is_refused_and_leaves_no_file(cluster: Cluster) -> None:
    with pytest.raises(RefusedStartError, match=f"adopt_lineage='{LINEAGE}'"):
        cluster.start().run(5)
    assert fingerprint(cluster) == {}


def test_an_adopted_checkpoint_goes_on_where_it_is(cluster: Cluster) -> None:
    permitted = Settings(permits=Permits(adopt_lineage=LINEAGE))
    cluster.start(settings=permitted).run(5)
    (begin,) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert (begin.first_batch, begin.prior_offsets) == (5, ('{"t":{"0":4}}',))
    cluster.start().run(6)  # the permit was needed once
    assert cluster.store.visible() == all_rows(5, 6)


def test_a_permit_that_names_another_lineage_permits_nothing(cluster: Cluster) -> None:
    with pytest.raises(RefusedStartError):
        cluster.start(settings=Settings(permits=Permits(adopt_lineage=OTHER))).run(5)
    cluster.start().run(0)
    with pytest.raises(RefusedStartError):
        cluster.start(settings=Settings(permits=Permits(end_lineage="lineage-c"))).run(0, lineage=OTHER)


def test_a_permitted_new_lineage_ends_the_old_one_for_good(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    permitted = Settings(permits=Permits(end_lineage=LINEAGE))
    cluster.start(settings=permitted).run(0, lineage=OTHER)
    (_, begin) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert begin.ends == LINEAGE
    before = fingerprint(cluster)
    for settings in (None, permitted, Settings(permits=Permits(end_lineage=OTHER))):
        with pytest.raises(RefusedStartError) as refused:
            cluster.start(settings=settings).run(2)
        assert refused.value.case == "ended lineage"
    assert fingerprint(cluster) == before


def test_a_permit_left_on_guards_still(cluster: Cluster) -> None:
    cluster.start().run(0)
    permitted = Settings(permits=Permits(end_lineage=LINEAGE))
    cluster.start(settings=permitted).run(0, 1, lineage=OTHER)
    with pytest.raises(RefusedStartError, match=f"end_lineage='{OTHER}'"):
        cluster.start(settings=permitted).run(0, lineage="lineage-c")


def test_the_ended_lineages_last_decision_is_finished_first(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    query = cluster.start(settings=Settings(permits=Permits(end_lineage=LINEAGE)))
    query.engine.rows = rows_of(7)
    query.run(0, lineage=OTHER)
    assert cluster.store.visible() == all_rows(0, 7)


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_batch_whose_transactions_are_all_lost_is_written_anew(cluster: Cluster) -> None:
    cluster.start().run(0)
    die_at(cluster, cluster.start(), "driver.decided", 1)
    cluster.store.expire()
    query = cluster.start()
    query.engine.rows = {0: all_rows(1)}  # another plan is welcome: nothing of the old one is in
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert [d.plan for d in records(cluster, Decision) if isinstance(d, Decision)] == ["write", "write", "rewrite"]
    assert query.engine.evaluated == 0


def test_a_batch_of_which_some_transactions_are_lost_is_repaired_with_the_same_rows(cluster: Cluster) -> None:
    running = cluster.start()
    running.run(0)
    die_at(cluster, running, "driver.committing", 1)
    cluster.store.expire(1)
    query = cluster.start()
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    (work,) = query.engine.works
    assert work.only == frozenset({("fake", 2)})
    (repaired,) = records(cluster, Repair)
    assert isinstance(repaired, Repair)
    assert [task.partition for task in repaired.tasks] == [2]
    assert query.engine.evaluated == 0


@pytest.mark.parametrize("point", [name for name in faults.POINTS if name != "driver.inspected"])
def test_a_repair_that_crashed_is_not_repaired_twice(point: str, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    die_at(cluster, cluster.start(), point, 0)
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert len(records(cluster, Repair)) == 1


@pytest.mark.parametrize(
    "rows",
    [
        {0: [0, 1], 1: [10, 11], 2: [20, 22]},
        {0: [0, 1], 1: [10, 11, 20, 21], 2: []},
        {0: [0, 1], 1: [10, 11]},
    ],
)
def test_a_replay_with_other_rows_is_in_doubt_and_says_which_are_in(
    rows: dict[int, list[int]], cluster: Cluster
) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    query.engine.rows = rows
    with pytest.raises(InDoubtError, match="staging=True") as doubt:
        query.run(0)
    names = list(cluster.store.transactions)[:3]  # partitions 2, 1, 0 in this order
    assert doubt.value.lost == (names[0],)
    assert doubt.value.committed == (names[2], names[1])
    assert all(name in str(doubt.value) for name in names)
    assert (cluster.store.visible(), cluster.store.pending()) == (all_rows(0)[:4], [])
    assert records(cluster, Repair) == []


@pytest.mark.parametrize(
    ("rows", "written"),
    [
        ({0: [10, 11], 1: [0, 1], 2: [20, 21]}, [{2}]),
        ({0: [20, 21], 1: [0, 1], 2: [10, 11]}, [{2}, {0}]),
    ],
    ids=["of what is in", "of what was lost"],
)
def test_a_replay_that_gives_the_decided_rows_in_other_tasks_is_repaired_from_where_they_are(
    rows: dict[int, list[int]], written: list[set[int]], cluster: Cluster
) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    query.engine.rows = rows
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert [{partition for _, partition in work.only or ()} for work in query.engine.works] == written
    (repaired,) = records(cluster, Repair)
    assert isinstance(repaired, Repair)
    assert [task.partition for task in repaired.tasks] == [2]
    cluster.start().run(0)
    assert (cluster.store.visible(), cluster.store.pending()) == (all_rows(0), [])


def test_an_engine_that_writes_more_than_what_was_lost_is_caught_before_the_decision(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    prepare = query.engine.prepare
    query.engine.prepare = lambda work: prepare(replace(work, only=None))  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="exactly what was lost"):
        query.run(0)
    assert (records(cluster, Repair), cluster.store.visible()) == ([], all_rows(0)[:4])


def test_a_loss_that_the_engine_has_left_behind_is_in_doubt(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start()
    with pytest.raises(InDoubtError, match="no replay") as doubt:
        query.run(1)
    assert len(doubt.value.lost) == 3
    assert query.engine.works == []


@pytest.mark.parametrize("lost", [None, 1])
def test_staged_rows_are_published_whatever_the_plan_gives_today(lost: int | None, cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.committing", 0)
    cluster.store.expire(lost)
    query = cluster.start(staging=True)
    query.engine.rows = {0: [999]}
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert (query.engine.evaluated, query.engine.works) == (1, [])


def test_staged_rows_are_published_even_when_the_engine_has_gone_on(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start(staging=True)
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert query.engine.evaluated == 0


def test_without_every_slice_that_was_lost_nothing_is_published_from_staging(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    del cluster.world.staged["0-1-1"]
    query = cluster.start(staging=True)
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert len(query.engine.works) == 1


def test_a_publication_that_fails_leaves_nothing_pending(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(staging=True), "driver.decided", 0)
    cluster.store.expire()
    cluster.store.refused_confirmations = 1
    with pytest.raises(RetriableError):
        cluster.start(staging=True).run(0)
    assert cluster.store.pending() == []
    cluster.start(staging=True).run(0)
    assert cluster.store.visible() == all_rows(0)


def test_staged_rows_are_settled_when_the_batch_is_proven(cluster: Cluster) -> None:
    query = cluster.start(staging=True)
    query.run(0, 1)
    staging = query.coordinator._staging
    assert isinstance(staging, FakeStaging)
    assert staging.settled == [(0, 0), (0, 1)]


def test_transactions_that_are_lost_while_they_are_committed_are_written_anew_at_once(cluster: Cluster) -> None:
    cluster.store.expire_on_commit = 3
    query = cluster.start()
    query.run(0)
    assert cluster.store.visible() == all_rows(0)
    assert len(query.engine.works) == 4


def test_transactions_that_are_lost_again_and_again_stop_the_query(cluster: Cluster) -> None:
    cluster.store.expire_on_commit = 4
    query = cluster.start()
    with pytest.raises(InDoubtError, match="timeout"):
        query.run(0)
    assert cluster.store.visible() == []
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)


def test_a_commit_that_cannot_be_proven_blocks_and_names_its_transactions(cluster: Cluster) -> None:
    cluster.store.unreachable = True
    with pytest.raises(CommitBlockedError) as blocked:
        cluster.start().run(0)
    assert blocked.value.transactions == tuple(reversed(cluster.store.transactions))
    with pytest.raises(CommitBlockedError):
        cluster.start().run(0)
    cluster.store.unreachable = False
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)


# -- failed attempts ---------------------------------------------------------------------------------------------------


def test_a_retriable_prepare_is_tried_again_as_a_new_attempt(cluster: Cluster) -> None:
    query = cluster.start()
    query.engine.failures = [RetriableError("one"), RetriableError("two")]
    query.run(0)
    assert [work.attempt.counter for work in query.engine.works] == [1, 2, 3]
    assert cluster.store.visible() == all_rows(0)


def test_a_refused_confirmation_voids_the_attempt_and_ends_its_transactions(cluster: Cluster) -> None:
    cluster.store.refused_confirmations = 1
    cluster.start().run(0)
    states = [transaction.state for transaction in cluster.store.transactions.values()]
    assert states == ["aborted"] * 3 + ["committed"] * 3


def test_after_max_attempts_the_error_is_the_querys_and_nothing_is_decided(cluster: Cluster) -> None:
    query = cluster.start(settings=Settings(max_attempts=2))
    cluster.store.refused_confirmations = 2
    with pytest.raises(RetriableError, match="refused"):
        query.run(0)
    assert len(query.engine.works) == 2
    assert (cluster.store.pending(), records(cluster, Decision)) == ([], [])


def test_a_fatal_prepare_is_not_tried_again(cluster: Cluster) -> None:
    query = cluster.start()
    query.engine.failures = [BadRecordError("too large")]
    with pytest.raises(BadRecordError):
        query.run(0)
    assert len(query.engine.works) == 1


def test_a_count_below_one_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="max_attempts=0"):
        Settings(max_attempts=0)
    with pytest.raises(ConfigurationError, match="keep_batches=0"):
        Settings(keep_batches=0)


# -- two drivers -------------------------------------------------------------------------------------------------------


def test_the_loser_of_two_drivers_is_fenced_and_changes_nothing(cluster: Cluster) -> None:
    loser, winner = cluster.start(), cluster.start()
    loser.run(0)
    winner.run(1)
    before, visible = fingerprint(cluster), cluster.store.visible()
    with pytest.raises(FencedError, match=re.escape("registers/00000000000000000002")):
        loser.run(1)
    assert (fingerprint(cluster), cluster.store.visible()) == (before, visible)
    with pytest.raises(FencedError):
        loser.run(1)
    winner.run(2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert cluster.store.pending() == []


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_second_driver_that_runs_while_the_first_is_paused_doubles_nothing(point: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    paused, other = cluster.start(), cluster.start()
    arm(point, lambda: other.run(1))
    try:
        paused.run(1)
    except (FencedError, DecisionInDoubtError):
        paused.coordinator.close()
    assert cluster.store.visible() == all_rows(0, 1)
    outcomes = []
    for query in (paused, other):
        try:
            query.run(2)
            outcomes.append("wrote")
        except (FencedError, RefusedStartError):
            outcomes.append("stopped")
    assert sorted(outcomes) == ["stopped", "wrote"]
    assert cluster.store.visible() == all_rows(0, 1, 2)


def test_a_start_that_is_refused_only_after_its_take_over_ends_no_transaction(cluster: Cluster) -> None:
    cluster.start().run(0)
    paused, other = cluster.start(), cluster.start()

    def overtaken() -> None:
        other.run(1)
        arm("driver.confirmed", fail_silently)
        with pytest.raises(Crash):
            other.run(2)

    def fail_silently() -> None:
        sweeps.append(cluster.store.sweeps)
        raise Crash

    sweeps: list[int] = []
    arm("driver.inspected", overtaken)
    with pytest.raises(RefusedStartError, match="rewound"):
        paused.run(0)
    assert cluster.store.sweeps == sweeps[0]


def test_a_driver_that_lost_during_its_own_take_over_does_not_throw_out_the_winner(cluster: Cluster) -> None:
    paused, winner = cluster.start(), cluster.start()
    log = paused.coordinator._log
    read = log.read

    def read_late() -> object:
        winner.run(0)
        log.read = read  # type: ignore[method-assign]
        return read()

    log.read = read_late  # type: ignore[method-assign,assignment]
    for _ in range(2):
        with pytest.raises(FencedError):
            paused.run(0)
    winner.run(1)
    assert cluster.store.visible() == all_rows(0, 1)


# -- the log -----------------------------------------------------------------------------------------------------------


def test_the_log_stays_small_and_a_restart_goes_on_after_truncation(cluster: Cluster) -> None:
    settings = Settings(keep_batches=3)
    cluster.start(settings=settings).run(*range(20))
    assert len(cluster.files.names("registers")) <= 2 * 3 + 3
    cluster.start(settings=settings).run(19, *range(20, 40))
    assert len(cluster.files.names("registers")) <= 2 * 3 + 3
    assert cluster.store.visible() == all_rows(*range(40))
    with pytest.raises(RefusedStartError, match="end_lineage"):
        cluster.start().run(38)


def test_what_was_ended_stays_ended_after_truncation(cluster: Cluster) -> None:
    cluster.start().run(0)
    ending = Settings(permits=Permits(end_lineage=LINEAGE), keep_batches=1)
    cluster.start(settings=ending).run(*range(5), lineage=OTHER)
    assert records(cluster, Begin) == []
    with pytest.raises(RefusedStartError) as refused:
        cluster.start().run(1)
    assert refused.value.case == "ended lineage"


@pytest.mark.parametrize("lost", [[0], [1], [0, 1], [0, 1, 2]])
def test_lost_registers_are_damage_and_not_an_empty_log(lost: list[int], cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    incarnation = cluster.store.incarnation
    for number in lost:
        cluster.files.remove(f"registers/{number:020d}")
    for batch in (0, 1, 2):
        with pytest.raises(DecisionLogDamagedError, match="missing"):
            cluster.start(settings=Settings(permits=Permits(adopt_lineage=LINEAGE))).run(batch)
    assert cluster.store.incarnation == incarnation


def test_a_log_that_was_deleted_is_refused_by_the_binding(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    for name in ["id", *cluster.files.names("registers")]:
        cluster.files.remove(f"registers/{name}")
    with pytest.raises(RefusedStartError, match="made anew"):
        cluster.start(settings=Settings(permits=Permits(adopt_lineage=LINEAGE))).run(1)


def test_a_decision_without_an_answer_is_not_taken_again_before_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    class Unplugged(LocalFiles):
        unplugged = False

        def read(self, name: str) -> bytes | None:
            if self.unplugged:
                raise OSError("no route")
            return super().read(name)

        def put_if_absent(self, name: str, data: bytes) -> bool:
            written = super().put_if_absent(name, data)
            if b'"type":"decision"' in data:
                self.unplugged = True
                raise OSError("no answer")
            return written

    files = Unplugged(tmp_path / "checkpoint" / "twopc")
    query = cluster.start(files=files)
    with pytest.raises(DecisionInDoubtError):
        query.run(0)
    files.unplugged = False
    with pytest.raises(DecisionInDoubtError):
        query.run(0)
    assert len(query.engine.works) == 1
    assert cluster.store.visible() == []
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)


# -- several sinks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", faults.POINTS)
def test_two_sinks_are_in_step_after_a_crash_at(point: str, cluster: Cluster) -> None:
    cluster.start("one", "two").run(0)
    die_at(cluster, cluster.start("one", "two"), point, 1)
    cluster.start("two", "one").run(1, 2)
    assert cluster.world.store("one").visible() == all_rows(0, 1, 2)
    assert cluster.world.store("two").visible() == all_rows(0, 1, 2)


def test_a_batch_lost_in_one_sink_only_is_repaired_there_only(cluster: Cluster) -> None:
    die_at(cluster, cluster.start("one", "two"), "driver.decided", 0)
    cluster.world.store("two").expire()
    query = cluster.start("one", "two")
    query.run(0)
    assert query.engine.works[0].only == frozenset({("two", 0), ("two", 1), ("two", 2)})
    assert cluster.world.store("one").visible() == cluster.world.store("two").visible() == all_rows(0)


def test_a_sink_is_added_by_name_and_that_is_recorded(cluster: Cluster) -> None:
    cluster.start("one").run(0)
    with pytest.raises(RefusedStartError, match="add_sink='two'"):
        cluster.start("one", "two").run(1)
    cluster.start("one", "two", settings=Settings(add_sink="two")).run(1)
    assert cluster.world.store("two").visible() == all_rows(1)
    cluster.start("one", "two").run(2)  # the permit was needed once
    with pytest.raises(RefusedStartError, match="give two back"):
        cluster.start("one").run(3)


def test_the_decisions_are_kept_in_the_log_that_comes_with_a_sink(cluster: Cluster, tmp_path: Path) -> None:
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    cluster.start("one", "two").run(0, 1)
    assert cluster.files.names("registers") == []
    assert len(OwnLog(cluster.world.logs["two"]).inspect().entries) == 4
    cluster.start("one", "two").run(1, 2)
    assert cluster.world.store("one").visible() == all_rows(0, 1, 2)


def test_an_added_sink_does_not_move_the_decisions_into_its_own_log(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start("one").run(0)
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    cluster.start("one", "two", settings=Settings(add_sink="two")).run(1)
    cluster.start("one", "two").run(1, 2)
    assert OwnLog(cluster.world.logs["two"]).inspect().entries == ()
    assert cluster.world.store("one").visible() == all_rows(0, 1, 2)
    assert cluster.world.store("two").visible() == all_rows(1, 2)


def test_a_driver_that_does_not_know_a_sink_added_meanwhile_is_refused(cluster: Cluster) -> None:
    cluster.start("one").run(0)
    old, new = cluster.start("one"), cluster.start("one", "two", settings=Settings(add_sink="two"))

    def decide_elsewhere() -> None:
        arm("driver.decided", cluster_dies)
        with pytest.raises(InjectedFault):
            new.run(1)

    def cluster_dies() -> None:
        raise InjectedFault

    arm("driver.inspected", decide_elsewhere)
    with pytest.raises(RefusedStartError, match="give two back"):
        old.run(1)
    cluster.start("one", "two").run(1)
    assert cluster.world.store("one").visible() == all_rows(0, 1)
    assert cluster.world.store("two").visible() == all_rows(1)


def test_a_driver_whose_commit_was_cut_short_does_not_take_the_batch_for_done(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0)
    arm("driver.decided", fail)
    with pytest.raises(InjectedFault):
        query.run(1)
    faults.disarm()
    with pytest.raises(CommitBlockedError):
        query.run(1)
    cluster.start().run(1)
    assert cluster.store.visible() == all_rows(0, 1)
