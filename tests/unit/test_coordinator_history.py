"""Which batch this is, and which query may continue (rule 10)."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.coordinator_support import DRIVER_POINTS, OTHER, die_at, fingerprint, records
from tests.unit.fake_sink import (
    PARTITIONS,
    QUERY_ID,
    Cluster,
    Crash,
    FakeCommitter,
    FakeEngine,
    FakeSink,
    Query,
    all_rows,
    batch_of,
    rows_of,
)
from twopc import crash_points
from twopc.attempt import Owner
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError, DecisionLogDamagedError, FatalError, FencedError, RefusedStartError
from twopc.files import LocalFiles
from twopc.override import Abandon, Overrides, ResumeAt
from twopc.records import Begin
from twopc.sealed import with_check
from twopc.settings import Settings
from twopc.testing.crash_points import arm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@pytest.fixture
def owned(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A sink that knows which query owned it last, and whether that query has decided since."""

    def newer(committer: FakeCommitter, scan_start: Mapping[str, int]) -> bool:
        known = scan_start["at"] + PARTITIONS if scan_start else 0
        shown = list(committer._store.transactions.values())
        return any(transaction.state == "committed" for transaction in shown[known:])

    def owner(committer: FakeCommitter) -> Owner:
        epoch = committer._store.driver_epoch
        return Owner(QUERY_ID if epoch else None, epoch)

    monkeypatch.setattr(FakeCommitter, "inspect", owner)
    monkeypatch.setattr(FakeCommitter, "has_newer_decision", newer)
    return cluster


def _rewound(query: Query) -> None:
    query.run(0)


def _copied_same_batch(query: Query) -> None:
    query.run(2, history="elsewhere")


def _copied_next_batch(query: Query) -> None:
    query.run(3, history="elsewhere")


def _gap(query: Query) -> None:
    query.run(4)


def _new_query(query: Query) -> None:
    query.run(0, query_id=OTHER)


REFUSED: dict[str, Callable[[Query], None]] = {
    "rewound": _rewound,
    "copied": _copied_same_batch,
    "copied ": _copied_next_batch,
    "gap": _gap,
    "new query": _new_query,
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_start_changes_nothing_and_fences_no_driver(case: str, cluster: Cluster) -> None:
    healthy = cluster.start()
    healthy.run(0, 1, 2)
    before, driver_epoch, sweeps = fingerprint(cluster), cluster.store.driver_epoch, cluster.store.sweeps
    with pytest.raises(RefusedStartError) as refused:
        REFUSED[case](cluster.start())
    assert refused.value.case == case.strip()
    assert fingerprint(cluster) == before
    assert (cluster.store.driver_epoch, cluster.store.sweeps) == (driver_epoch, sweeps)
    healthy.run(3)
    assert cluster.store.visible() == all_rows(0, 1, 2, 3)


def test_a_checkpoint_older_than_the_sink_is_refused_and_leaves_no_file(cluster: Cluster) -> None:
    with pytest.raises(RefusedStartError, match=rf"override=AdoptQuery\('{QUERY_ID}'\)"):
        cluster.start().run(5)
    assert fingerprint(cluster) == {}


def test_an_adopted_query_continues_at_its_batch(cluster: Cluster) -> None:
    overriding = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    cluster.start(settings=overriding).run(5)
    (begin,) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert (begin.first_batch, begin.prior_offsets) == (5, ('{"t":{"0":4}}',))
    cluster.start().run(6)  # the log now contains the first batch
    assert cluster.store.visible() == all_rows(5, 6)


def _refuse_rows() -> None:
    raise FatalError("a bad row")


@pytest.mark.parametrize("point", ["task.began", "driver.confirmed"])
@pytest.mark.parametrize(
    ("before", "first"), [((), 5), ((), 0), ((0, 1), 5)], ids=["adopted", "batch 0", "replaces another"]
)
def test_an_adopted_query_does_not_skip_its_first_batch_although_the_function_caught_the_error(
    before: tuple[int, ...], first: int, point: str, cluster: Cluster
) -> None:
    """The engine moves on after the failed batch. Fails if any batch of an adopted query may be its first one."""
    cluster.start().run(*before, query_id=OTHER)
    overriding = Settings(overrides=Overrides(adopt_query_id=QUERY_ID, end_query_ids={OTHER}))
    query = cluster.start(settings=overriding)
    arm(point, _refuse_rows)
    with pytest.raises(FatalError, match="a bad row"):
        query.run(first)
    for later in (query, cluster.start(settings=overriding), cluster.start()):
        with pytest.raises(RefusedStartError, match="caught") as refused:
            later.run(first + 1)
        assert refused.value.case == "gap"
    cluster.start().run(first, first + 1)
    assert cluster.store.visible() == sorted(all_rows(*before) + all_rows(first, first + 1))


def test_a_query_that_replaces_another_one_may_use_a_new_store_even_if_its_adoption_failed(
    owned: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log contains the other query's decisions, and none of this query's."""
    owned.start().run(0)
    monkeypatch.setattr(FakeCommitter, "lacks_decisions", lambda _, scan_start: bool(scan_start))
    monkeypatch.setattr(FakeCommitter, "inspect", lambda committer: Owner(OTHER, committer._store.driver_epoch))
    overriding = Settings(overrides=Overrides(adopt_query_id=OTHER, end_query_ids={QUERY_ID}))
    arm("driver.confirmed", _refuse_rows)
    with pytest.raises(FatalError, match="a bad row"):
        owned.start(settings=overriding).run(5, query_id=OTHER)
    owned.start(settings=overriding).run(5, query_id=OTHER)
    assert owned.store.visible() == all_rows(0, 5)


def test_an_adoption_that_crashes_before_its_first_attempt_starts_again(cluster: Cluster) -> None:
    adopting = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    die_at(cluster, cluster.start(settings=adopting), "driver.bound", 5)
    assert records(cluster, Begin) == []
    cluster.start(settings=adopting).run(5)
    assert cluster.store.visible() == all_rows(5)


def test_an_override_for_another_query_has_no_effect(cluster: Cluster) -> None:
    with pytest.raises(RefusedStartError):
        cluster.start(settings=Settings(overrides=Overrides(adopt_query_id=OTHER))).run(5)
    cluster.start().run(0)
    with pytest.raises(RefusedStartError):
        cluster.start(settings=Settings(overrides=Overrides(end_query_ids={"query-c"}))).run(0, query_id=OTHER)


def test_end_query_id_ends_the_old_query_permanently(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    overriding = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    cluster.start(settings=overriding).run(0, query_id=OTHER)
    (_, begin) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert begin.ends == QUERY_ID
    before = fingerprint(cluster)
    for settings in (None, overriding, Settings(overrides=Overrides(end_query_ids={OTHER}))):
        with pytest.raises(RefusedStartError) as refused:
            cluster.start(settings=settings).run(2)
        assert refused.value.case == "ended query"
    assert fingerprint(cluster) == before


def test_an_override_that_stays_in_the_code_does_not_admit_the_next_query(cluster: Cluster) -> None:
    cluster.start().run(0)
    overriding = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    cluster.start(settings=overriding).run(0, 1, query_id=OTHER)
    with pytest.raises(RefusedStartError, match=rf"EndQuery\('{OTHER}'\)\]. This start"):
        cluster.start(settings=overriding).run(0, query_id="query-c")


@pytest.mark.parametrize(
    ("timeout_ms", "batch", "warned"), [(1000.0, 4, True), (None, 4, False), (1000.0, 0, True)], ids=str
)
def test_a_refusal_warns_that_decided_transactions_expire_if_they_can(
    timeout_ms: float | None, batch: int, *, warned: bool, cluster: Cluster
) -> None:
    cluster.start().run(0, 1)
    sink = FakeSink(cluster.world, prepare_timeout_ms=timeout_ms)
    with pytest.raises(RefusedStartError) as refused:
        Coordinator([sink], cluster.files).process(batch_of(batch), FakeEngine(sink))
    assert ("will expire (kafka.transaction.timeout.ms)" in str(refused.value)) is warned


@pytest.mark.parametrize(
    ("timeout_ms", "decided", "ends", "warned"),
    [
        (1000.0, True, set(), True),
        (None, True, set(), False),
        (1000.0, False, set(), False),
        (1000.0, False, {"an older query"}, True),
    ],
)
def test_a_setting_that_stops_the_start_warns_that_decided_transactions_expire_if_there_may_be_any(
    timeout_ms: float | None,
    ends: set[str],
    *,
    decided: bool,
    warned: bool,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if decided:
        cluster.start().run(0)

    def inspect(_: FakeCommitter) -> Owner:
        raise ConfigurationError("the store has a setting that loses rows. Change it")

    monkeypatch.setattr(FakeCommitter, "inspect", inspect)
    sink = FakeSink(cluster.world, prepare_timeout_ms=timeout_ms)
    query = Coordinator([sink], cluster.files, settings=Settings(overrides=Overrides(end_query_ids=ends)))
    with pytest.raises(ConfigurationError, match="loses rows") as refused:
        query.process(batch_of(1), FakeEngine(sink))
    assert ("will expire (kafka.transaction.timeout.ms)" in str(refused.value)) is warned


def test_a_refusal_does_not_mention_expiry_if_nothing_was_decided(cluster: Cluster) -> None:
    sink = FakeSink(cluster.world, prepare_timeout_ms=1000.0)
    with pytest.raises(RefusedStartError) as refused:
        Coordinator([sink], cluster.files).process(batch_of(4), FakeEngine(sink))
    assert "expire" not in str(refused.value)


# -- a gap ---------------------------------------------------------------------------------------------------------------


def test_the_setting_in_the_error_lets_the_query_resume_after_a_gap_once(cluster: Cluster) -> None:
    """A query that calls us only for its non-empty batches skips the others."""
    cluster.start().run(0, 1)
    with pytest.raises(RefusedStartError, match=r"override=ResumeAt\(4, 'query-a'\)\."):
        cluster.start().run(4)
    named = Settings(overrides=Overrides(resume_at=ResumeAt(4)))
    query = cluster.start(settings=named)
    query.run(4, 5)
    assert cluster.store.visible() == all_rows(0, 1, 4, 5)
    (_, begin) = records(cluster, Begin)
    assert begin == Begin(query_id=QUERY_ID, first_batch=4, prior_offsets=('{"t":{"0":3}}',))
    with pytest.raises(RefusedStartError, match=r"override=ResumeAt\(7, 'query-a'\)\."):
        query.run(7)
    for rewound in (1, 4):
        with pytest.raises(RefusedStartError, check=lambda error: error.case == "rewound"):
            cluster.start(settings=named).run(rewound)
    cluster.start().run(5, 6)
    assert cluster.store.visible() == all_rows(0, 1, 4, 5, 6)


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_crash_while_the_query_resumes_after_a_gap_leaves_each_row_visible_once(point: str, cluster: Cluster) -> None:
    cluster.start().run(0)
    named = Settings(overrides=Overrides(resume_at=ResumeAt(4)))
    arm(point, cluster.world.crash)
    with contextlib.suppress(Crash):
        cluster.start(settings=named).run(4)
    crash_points.disarm()
    cluster.start(settings=named).run(4, 5)
    assert cluster.store.visible() == all_rows(0, 4, 5)


def test_the_last_decision_before_a_gap_is_finished_first(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    cluster.start(settings=Settings(overrides=Overrides(resume_at=ResumeAt(4)))).run(4)
    assert cluster.store.visible() == all_rows(0, 4)


def test_a_gap_is_still_detected_after_truncation(cluster: Cluster) -> None:
    cluster.start().run(0)
    settings = Settings(overrides=Overrides(resume_at=ResumeAt(4)), keep_batches=1)
    cluster.start(settings=settings).run(*range(4, 8))
    cluster.start().run(7, 8)
    assert cluster.store.visible() == all_rows(0, 4, 5, 6, 7, 8)


# -- an older copy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [5]], ids=["before it was adopted", "later"])
def test_a_setting_left_in_the_code_does_not_let_an_older_copy_of_the_checkpoint_write(
    before: list[int], owned: Cluster, tmp_path: Path
) -> None:
    adopting = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    running = owned.start(settings=adopting)
    running.run(*before)
    Path(owned.files.location).mkdir(parents=True, exist_ok=True)
    backup = tmp_path / "backup"
    shutil.copytree(owned.files.location, backup)
    running.run(5 + len(before))
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "older copy"):
        owned.start(settings=adopting, files=LocalFiles(backup)).run(5 + len(before))
    owned.start(settings=adopting).run(6 + len(before))
    assert owned.store.visible() == all_rows(*before, 5 + len(before), 6 + len(before))


def test_a_copy_from_before_a_sink_was_added_counts_as_an_older_copy(owned: Cluster, tmp_path: Path) -> None:
    """Fails if a sink that is missing from the copy's decisions is not asked: only this sink has rows of the later batches."""
    owned.start("one").run(0)
    backup = shutil.copytree(owned.files.location, tmp_path / "backup")
    adding = Settings(overrides=Overrides(added_sinks={"two"}))

    def start(files: LocalFiles | None = None) -> Query:
        query = owned.start("one", "two", settings=adding, files=files)
        query.engine = FakeEngine(FakeSink(owned.world, "two"))
        return query

    start().run(1)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "older copy"):
        start(LocalFiles(backup)).run(1)
    start().run(2)
    assert owned.world.store("two").visible() == all_rows(1, 2)


def test_a_start_alongside_a_deciding_driver_does_not_count_as_an_older_copy(
    owned: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the log before that decision, and the sink after it."""
    running = owned.start()
    running.run(0)
    newer = FakeCommitter.has_newer_decision
    batches = [1]

    def later(committer: FakeCommitter, scan_start: Mapping[str, int]) -> bool:
        if batches and committer.driver_epoch < 0:
            running.run(batches.pop())
        return newer(committer, scan_start)

    monkeypatch.setattr(FakeCommitter, "has_newer_decision", later)
    owned.start().run(1, 2)
    assert (batches, owned.store.visible()) == ([], all_rows(0, 1, 2))


def test_a_driver_replaced_while_it_starts_is_fenced_and_not_refused_as_an_older_copy(
    owned: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned.start().run(0)
    newer = FakeCommitter.has_newer_decision
    started: list[Query] = []

    def later(committer: FakeCommitter, scan_start: Mapping[str, int]) -> bool:
        if not started and committer.driver_epoch >= 0:  # this driver has acquired the sink
            started.append(owned.start())
            started[0].run(1)
        return newer(committer, scan_start)

    monkeypatch.setattr(FakeCommitter, "has_newer_decision", later)
    with pytest.raises(FencedError, match="another driver has started"):
        owned.start().run(1)
    started[0].run(2)
    assert owned.store.visible() == all_rows(0, 1, 2)


def test_a_query_that_crashed_while_it_was_adopted_is_not_an_older_copy(owned: Cluster) -> None:
    adopting = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    die_at(owned, owned.start(settings=adopting), "driver.confirmed", 5)
    owned.start(settings=adopting).run(5)
    assert owned.store.visible() == all_rows(5)


def test_a_query_that_crashed_after_abandoning_a_batch_does_not_yet_count_as_an_older_copy(
    owned: Cluster, tmp_path: Path
) -> None:
    """Its backup counts as an older copy once another run has continued the query."""
    die_at(owned, owned.start(), "driver.committing", 0)
    owned.store.expire(1)
    die_at(owned, owned.start(settings=Settings(overrides=Overrides(abandoned={Abandon(0)}))), "driver.confirmed", 1)
    backup = shutil.copytree(owned.files.location, tmp_path / "backup")
    owned.start().run(1)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "older copy"):
        owned.start(files=LocalFiles(backup)).run(1)
    assert owned.store.visible() == sorted(all_rows(0)[:4] + all_rows(1))


def test_a_query_that_replaces_another_one_may_use_a_new_store_even_if_its_first_start_crashed(
    owned: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new store contains none of the other query's decisions, and loses nothing by that."""
    owned.start().run(0)
    monkeypatch.setattr(FakeCommitter, "lacks_decisions", lambda _, scan_start: bool(scan_start))
    monkeypatch.setattr(FakeCommitter, "inspect", lambda committer: Owner(OTHER, committer._store.driver_epoch))
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    query = owned.start(settings=ending)
    query.engine.rows = rows_of(7)
    query.run(0, query_id=OTHER)
    assert owned.store.visible() == all_rows(0, 7)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "older store"):
        owned.start(settings=ending).run(1, query_id=OTHER)


@pytest.mark.parametrize(
    ("first", "logged", "is_offered"),
    [(("fake",), "", True), (("fake", "two"), "two", False), (("fake",), "two", False)],
    ids=["the checkpoint", "another sink", "the checkpoint, and another sink keeps its transactions"],
)
def test_only_a_query_whose_records_are_all_in_its_checkpoint_may_return_to_the_time_of_a_backup(
    first: tuple[str, ...],
    logged: str,
    is_offered: bool,  # noqa: FBT001 - a case
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another sink's log would refuse the older checkpoint, and advise to restore the newest one."""
    if logged:
        cluster.world.logs[logged] = LocalFiles(tmp_path / "own")
    cluster.start(*first).run(0)
    monkeypatch.setattr(FakeCommitter, "lacks_decisions", lambda committer, _: committer._sink == "fake")
    sinks = ("fake", logged) if logged else ("fake",)
    with pytest.raises(
        RefusedStartError, match=r"^older store: .*Restore a newer state of the store.*EndQuery"
    ) as raised:
        cluster.start(*sinks, settings=Settings(overrides=Overrides(added_sinks=frozenset({logged})))).run(1)
    assert ("restore the checkpoint and the query's other sinks" in str(raised.value)) is is_offered


@pytest.mark.parametrize(("timeout_ms", "expires"), [(1000.0, True), (None, False)], ids=["expires", "does not expire"])
def test_a_log_from_another_version_is_not_reported_as_damaged(
    timeout_ms: float | None, *, expires: bool, cluster: Cluster
) -> None:
    """Fails if an upgrade that is rolled back is told to start with a new checkpoint, which would write rows twice."""
    cluster.start().run(0)
    cluster.files.put_if_absent("registers/" + "3".zfill(20), with_check(b'{"format":"twopc-register/2"}'))
    before, sink = fingerprint(cluster), FakeSink(cluster.world, prepare_timeout_ms=timeout_ms)
    with pytest.raises(DecisionLogDamagedError, match=r"is in format twopc-register/2.*Use the version") as refused:
        Coordinator([sink], cluster.files).process(batch_of(1), FakeEngine(sink))
    message = str(refused.value)
    assert "is not damaged" in message and "Nothing was written" in message and "start with a new" not in message
    assert ("will expire (kafka.transaction.timeout.ms)" in message) is expires
    assert fingerprint(cluster) == before


@dataclass(frozen=True)
class ChangedHandle:
    """The handle in a new version of the sink's code: its new field has no default value."""

    transaction: str
    bucket: str


@pytest.mark.parametrize(("query_id", "batch_id", "ends"), [(QUERY_ID, 1, set()), (OTHER, 0, {QUERY_ID})])
def test_a_start_that_cannot_decode_the_last_decisions_handles_is_refused_and_fences_no_driver(
    query_id: str, batch_id: int, ends: set[str], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = cluster.start()
    running.run(0)
    with monkeypatch.context() as changed:
        changed.setattr(FakeSink, "decode_handle", lambda _, stored: msgspec.convert(stored, ChangedHandle))
        with pytest.raises(
            ConfigurationError,
            match=r"sink 'fake' cannot read its handles for batch 0.*missing required field `bucket`",
        ):
            cluster.start(settings=Settings(overrides=Overrides(end_query_ids=ends))).run(batch_id, query_id=query_id)
    running.run(1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_the_last_decision_of_the_ended_query_is_committed_first(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    query = cluster.start(settings=Settings(overrides=Overrides(end_query_ids={QUERY_ID})))
    query.engine.rows = rows_of(7)
    query.run(0, query_id=OTHER)
    assert cluster.store.visible() == all_rows(0, 7)
