"""The whole protocol: a coordinator with an in-memory sink and write-once registers on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import OTHER, die_at, fail, records
from tests.unit.fake_sink import QUERY_ID, Cluster, FakeCommitter, OwnLog, all_rows
from tests.unit.objects import Objects
from twopc import crash_points
from twopc.binding import Binding
from twopc.bound import FORMAT, Bound
from twopc.engine import Repair
from twopc.errors import (
    BadRecordError,
    CommitBlockedError,
    ConfigurationError,
    DecisionInDoubtError,
    DecisionLogDamagedError,
    RefusedStartError,
    RetriableError,
)
from twopc.files import LocalFiles
from twopc.override import Overrides
from twopc.records import Acquired, Begin, Decision
from twopc.registers import RegisterLog
from twopc.sealed import seal
from twopc.settings import Settings
from twopc.testing.crash_points import InjectedFault, arm

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.attempt import Claim, Owner


# -- the normal flow ---------------------------------------------------------------------------------------------------


def test_the_first_batch_becomes_visible_and_begins_the_query(cluster: Cluster) -> None:
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)
    (begin,) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert (begin.query_id, begin.first_batch, begin.prior_offsets, begin.ends) == (QUERY_ID, 0, (), None)


def test_each_batch_is_decided_once_under_one_acquisition(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0, 1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert [d.batch_id for d in records(cluster, Decision) if isinstance(d, Decision)] == [0, 1, 2]
    assert len(records(cluster, Acquired)) == 1
    assert query.engine.evaluated == 0


def test_a_restart_continues_with_the_next_batch(cluster: Cluster) -> None:
    cluster.start().run(0)
    cluster.start().run(1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_a_replayed_batch_is_only_evaluated(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    query = cluster.start()
    query.run(1)
    assert (query.engine.evaluated, len(query.engine.works)) == (1, 0)
    query.run(2)
    assert query.engine.evaluated == 1
    assert cluster.store.visible() == all_rows(0, 1, 2)


def test_a_batch_without_rows_leads_to_a_decision_without_handles(cluster: Cluster) -> None:
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


def test_a_proven_batch_leaves_nothing_pending(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    assert cluster.store.pending() == []


def test_committed_through_is_the_last_batch_proven_in_this_query(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0, 1)
    assert [work.committed_through for work in query.engine.works] == [-1, 0]
    restarted = cluster.start()
    restarted.run(2)
    assert [work.committed_through for work in restarted.engine.works] == [1]
    ending = cluster.start(settings=Settings(overrides=Overrides(end_query_ids={QUERY_ID})))
    ending.run(0, query_id=OTHER)
    assert [work.committed_through for work in ending.engine.works] == [-1]


def test_attempts_are_unique_and_increase(cluster: Cluster) -> None:
    first, second = cluster.start(), cluster.start()
    first.engine.failures = [RetriableError("once")]
    first.run(0, 1)
    second.run(2)
    attempts = [work.attempt for work in first.engine.works + second.engine.works]
    assert len(set(attempts)) == len(attempts) == 4
    assert attempts == sorted(attempts)


# -- failed attempts ---------------------------------------------------------------------------------------------------


def test_a_retriable_error_leads_to_a_new_attempt(cluster: Cluster) -> None:
    query = cluster.start()
    query.engine.failures = [RetriableError("one"), RetriableError("two")]
    query.run(0)
    assert [work.attempt.counter for work in query.engine.works] == [1, 2, 3]
    assert cluster.store.visible() == all_rows(0)


def test_a_refused_confirmation_aborts_the_attempt(cluster: Cluster) -> None:
    cluster.store.refused_confirmations = 1
    cluster.start().run(0)
    states = [transaction.state for transaction in cluster.store.transactions.values()]
    assert states == ["aborted"] * 3 + ["committed"] * 3


def test_the_last_allowed_attempt_raises_its_error_and_nothing_is_decided(cluster: Cluster) -> None:
    query = cluster.start(settings=Settings(max_attempts=2))
    cluster.store.refused_confirmations = 2
    with pytest.raises(RetriableError, match="refused"):
        query.run(0)
    assert len(query.engine.works) == 2
    assert (cluster.store.pending(), records(cluster, Decision)) == ([], [])


def test_a_failed_attempt_leaves_no_transaction_open(cluster: Cluster) -> None:
    """The driver never received the other tasks' handles; only the sweep finds their transactions."""
    arm("task.prepared", fail, passage=2)
    with pytest.raises(InjectedFault):
        cluster.start(settings=Settings(max_attempts=1)).run(0)
    assert len(cluster.store.transactions) == 2
    assert cluster.store.pending() == []


def test_every_run_acquires_its_sinks_under_its_own_name(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """By that name, a sink recognizes a retried acquisition, and a new owner."""
    names: list[str] = []
    really = FakeCommitter.acquire

    def acquire(committer: FakeCommitter, claim: Claim, seen: Owner | None) -> int:
        names.append(claim.run)
        return really(committer, claim, seen)

    monkeypatch.setattr(FakeCommitter, "acquire", acquire)
    for _ in range(2):
        cluster.start("one", "two").run(0)
    assert [names[0], names[2]] == [names[1], names[3]]
    assert names[0] != names[2]


def test_a_fatal_error_is_not_retried(cluster: Cluster) -> None:
    query = cluster.start()
    query.engine.failures = [BadRecordError("too large")]
    with pytest.raises(BadRecordError):
        query.run(0)
    assert len(query.engine.works) == 1


def test_a_setting_below_one_is_rejected_with_an_error_that_identifies_it() -> None:
    with pytest.raises(ConfigurationError, match="max_attempts must be 1 or more, got 0"):
        Settings(max_attempts=0)
    with pytest.raises(ConfigurationError, match="keep_batches must be 1 or more, got 0"):
        Settings(keep_batches=0)


# -- the log -----------------------------------------------------------------------------------------------------------


def test_the_log_is_truncated_and_a_restart_continues_from_it(cluster: Cluster) -> None:
    settings = Settings(keep_batches=3)
    cluster.start(settings=settings).run(*range(20))
    assert len(cluster.files.names("registers")) <= 2 * 3 + 3
    cluster.start(settings=settings).run(19, *range(20, 40))
    assert len(cluster.files.names("registers")) <= 2 * 3 + 3
    assert cluster.store.visible() == all_rows(*range(40))
    with pytest.raises(RefusedStartError, match="EndQuery"):
        cluster.start().run(38)


def test_an_ended_query_stays_ended_after_truncation(cluster: Cluster) -> None:
    cluster.start().run(0)
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}), keep_batches=1)
    cluster.start(settings=ending).run(*range(5), query_id=OTHER)
    assert records(cluster, Begin) == []
    with pytest.raises(RefusedStartError) as refused:
        cluster.start().run(1)
    assert refused.value.case == "ended query"


@pytest.mark.parametrize("lost", [[0], [1], [0, 1], [0, 1, 2]])
def test_missing_registers_count_as_damage(lost: list[int], cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    driver_epoch = cluster.store.driver_epoch
    for number in lost:
        cluster.files.remove(f"registers/{number:020d}")
    for batch in (0, 1, 2):
        with pytest.raises(DecisionLogDamagedError, match="missing"):
            cluster.start(settings=Settings(overrides=Overrides(adopt_query_id=QUERY_ID))).run(batch)
    assert cluster.store.driver_epoch == driver_epoch


def test_a_deleted_log_is_refused_by_the_binding(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    for name in ["id", *cluster.files.names("registers")]:
        cluster.files.remove(f"registers/{name}")
    with pytest.raises(RefusedStartError, match="recreated"):
        cluster.start(settings=Settings(overrides=Overrides(adopt_query_id=QUERY_ID))).run(1)


def test_a_decision_in_doubt_is_not_repeated_before_a_restart(cluster: Cluster, tmp_path: Path) -> None:
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


def decides_in(cluster: Cluster, sink: str) -> bool:
    """Whether the sink's own log contains more than the drivers' records."""
    return any(not isinstance(one.record, Acquired) for one in OwnLog(cluster.world.logs[sink]).inspect().entries)


@pytest.mark.parametrize("point", crash_points.POINTS)
def test_two_sinks_contain_the_same_batches_after_a_crash_at_any_point(point: str, cluster: Cluster) -> None:
    cluster.start("one", "two").run(0)
    die_at(cluster, cluster.start("one", "two"), point, 1)
    cluster.start("two", "one").run(1, 2)
    assert cluster.world.store("one").visible() == all_rows(0, 1, 2)
    assert cluster.world.store("two").visible() == all_rows(0, 1, 2)


def test_a_batch_lost_in_one_sink_is_repaired_only_in_that_sink(cluster: Cluster) -> None:
    die_at(cluster, cluster.start("one", "two"), "driver.decided", 0)
    cluster.world.store("two").expire()
    query = cluster.start("one", "two")
    query.run(0)
    mode = query.engine.works[0].mode
    assert isinstance(mode, Repair)
    assert mode.lost == {"two": {("", 0), ("", 1), ("", 2)}}
    assert cluster.world.store("one").visible() == cluster.world.store("two").visible() == all_rows(0)


def test_add_sink_binds_the_new_sink_for_later_runs(cluster: Cluster) -> None:
    cluster.start("one").run(0)
    with pytest.raises(RefusedStartError, match=r"override=AddSink\('two'\)"):
        cluster.start("one", "two").run(1)
    cluster.start("one", "two", settings=Settings(overrides=Overrides(added_sinks={"two"}))).run(1)
    assert cluster.world.store("two").visible() == all_rows(1)
    cluster.start("one", "two").run(2)  # the binding now contains the sink
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(two\) again"):
        cluster.start("one").run(3)


def test_decisions_are_kept_in_a_sinks_own_log_if_it_has_one(cluster: Cluster, tmp_path: Path) -> None:
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    cluster.start("one", "two").run(0, 1)
    assert cluster.files.names("registers") == []
    assert len([*OwnLog(cluster.world.logs["two"]).inspect().entries]) == 4
    cluster.start("one", "two").run(1, 2)
    assert cluster.world.store("one").visible() == all_rows(0, 1, 2)


def test_an_object_store_holds_the_checkpoint_of_a_query_whose_sink_keeps_the_decisions(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    files = Objects()
    cluster.start("one", "two", files=files).run(0, 1)
    arm("driver.decided", fail)
    with pytest.raises(InjectedFault):
        cluster.start("one", "two", files=files).run(2)
    crash_points.disarm()
    cluster.start("one", "two", files=files).run(2, 3)
    assert cluster.world.store("one").visible() == all_rows(0, 1, 2, 3)


def test_a_sink_added_on_an_object_store_is_bound_although_the_store_lists_no_files(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Fails if a decision does not name its binding."""
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    files = Objects()
    cluster.start("two", files=files).run(0)
    cluster.start("one", "two", files=files, settings=Settings(overrides=Overrides(added_sinks={"one"}))).run(1)
    cluster.start("one", "two", files=files).run(2)
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(one\) again"):
        cluster.start("two", files=files).run(3)
    assert cluster.world.store("one").visible() == all_rows(1, 2)


def test_a_start_on_an_object_store_finds_its_decisions_although_the_fixed_name_names_another_of_its_logs(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A driver with only the other sink bound the checkpoint at the same time. It overwrote the fixed name, and died."""
    cluster.world.logs |= {name: LocalFiles(tmp_path / name) for name in ("one", "two")}
    one, two = (OwnLog(cluster.world.logs[name]) for name in ("one", "two"))
    files = Objects()
    cluster.start("one", "two", files=files).run(0)
    lost = Bound(format=FORMAT, log=two.name, log_identity=two.identity(), sinks={"two": Binding(files).sinks["two"]})
    files.content["binding-000001.json"] = seal(lost)
    cluster.start("one", "two", files=files).run(1)
    assert cluster.world.store("one").visible() == all_rows(0, 1)
    assert Binding(files).log_identity == one.identity()


def test_an_object_store_cannot_hold_the_decisions(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="Add a Kafka sink to the query"):
        cluster.start("one", files=Objects())


def test_an_added_sink_does_not_move_the_decisions_into_its_own_log(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start("one").run(0)
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    cluster.start("one", "two", settings=Settings(overrides=Overrides(added_sinks={"two"}))).run(1)
    cluster.start("one", "two").run(1, 2)
    assert not decides_in(cluster, "two")
    assert cluster.world.store("one").visible() == all_rows(0, 1, 2)
    assert cluster.world.store("two").visible() == all_rows(1, 2)


@pytest.mark.parametrize("first", ["two", "one"])
def test_an_added_sink_does_not_take_over_the_decisions_although_its_log_has_the_same_name(
    first: str, cluster: Cluster, tmp_path: Path
) -> None:
    """Two ledgers on two clusters may have one name. Seen: the first one was taken, and looked like a recreated ledger."""
    added = {"one": "two", "two": "one"}[first]
    cluster.world.logs |= {name: LocalFiles(tmp_path / name) for name in ("one", "two")}
    cluster.start(first).run(0)
    cluster.start("one", "two", settings=Settings(overrides=Overrides(added_sinks={added}))).run(1)
    cluster.start("one", "two").run(1, 2)
    assert not decides_in(cluster, added)
    assert cluster.world.store(first).visible() == all_rows(0, 1, 2)
    assert cluster.world.store(added).visible() == all_rows(1, 2)


def test_an_added_sink_does_not_take_over_the_decisions_although_its_log_is_named_like_the_one_in_the_checkpoint(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may call a ledger ``registers``."""
    monkeypatch.setattr(OwnLog, "name", RegisterLog.name)
    cluster.start("one").run(0)
    cluster.world.logs["two"] = LocalFiles(tmp_path / "own")
    cluster.start("one", "two", settings=Settings(overrides=Overrides(added_sinks={"two"}))).run(1)
    cluster.start("one", "two").run(1, 2)
    assert not decides_in(cluster, "two")
    assert cluster.world.store("two").visible() == all_rows(1, 2)


def test_a_driver_without_a_recently_added_sink_is_refused(cluster: Cluster) -> None:
    cluster.start("one").run(0)
    old, new = (
        cluster.start("one"),
        cluster.start("one", "two", settings=Settings(overrides=Overrides(added_sinks={"two"}))),
    )

    def decide_with_two_sinks() -> None:
        arm("driver.decided", die)
        with pytest.raises(InjectedFault):
            new.run(1)

    def die() -> None:
        raise InjectedFault

    arm("driver.inspected", decide_with_two_sinks)
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(two\) again"):
        old.run(1)
    cluster.start("one", "two").run(1)
    assert cluster.world.store("one").visible() == all_rows(0, 1)
    assert cluster.world.store("two").visible() == all_rows(1)


def test_a_driver_whose_commit_was_interrupted_does_not_continue(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0)
    arm("driver.decided", fail)
    with pytest.raises(InjectedFault):
        query.run(1)
    crash_points.disarm()
    with pytest.raises(CommitBlockedError):
        query.run(1)
    cluster.start().run(1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_when_a_batch_is_swept_each_sink_requests_in_advance_what_its_next_attempt_needs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []

    def noted(name: str) -> None:
        really = getattr(FakeCommitter, name)

        def call(committer: FakeCommitter, *given: object) -> object:
            calls.append((committer._sink, name))
            return really(committer, *given)

        monkeypatch.setattr(FakeCommitter, name, call)

    query = cluster.start("one", "two")
    query.run(0)
    for name in ("begin_attempt", "recover_and_abort", "prefetch"):
        noted(name)
    query.run(1)
    assert [call for sink, call in calls if sink == "one"] == ["begin_attempt", "recover_and_abort", "prefetch"]
    assert calls[-2:] == [("one", "prefetch"), ("two", "prefetch")]
