"""A start completes the last batches of queries that have written to the same sinks, and gives up nothing unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.coordinator_support import OTHER, die_at
from tests.unit.ended_support import THIRD, add_b, advised, cluster, ending, killed, new, shown, twice
from tests.unit.fake_sink import QUERY_ID, Cluster, OwnLog, Query, all_rows
from tests.unit.owned_sink import OwnedCommitter, OwnedSink, OwnedStore
from twopc.attempt import Evidence
from twopc.errors import CommitBlockedError, InDoubtError, RefusedStartError, RetriableError
from twopc.files import LocalFiles
from twopc.last_decision import LastDecision
from twopc.log_view import fold
from twopc.override import Abandon, AddSink, AdoptQuery, EndQuery, Overrides
from twopc.participants import Participants
from twopc.records import Begin
from twopc.settings import Settings
from twopc.testing.crash_points import arm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twopc.files import Files
    from twopc.override import Override

__all__ = ["cluster", "new"]


@pytest.fixture
def stores(cluster: Cluster) -> Cluster:
    """The sinks "s" and "l" keep a control record. The store of "l" proves only its newest decision, as a table does."""
    cluster.kinds = {"s": OwnedSink, "l": OwnedSink}
    cluster.world.stores |= {"s": OwnedStore(), "l": OwnedStore(is_forgetful=True)}
    return cluster


@pytest.fixture
def newest(tmp_path: Path) -> LocalFiles:
    """A third checkpoint."""
    return LocalFiles(tmp_path / "newest")


def passing(*overrides: Override) -> Settings:
    return Settings(overrides=Overrides.of(overrides))


def ended(cluster: Cluster, sink: str) -> list[str]:
    return [name for name, one in cluster.world.store(sink).transactions.items() if one.state == "aborted"]


def succeed(stores: Cluster, *sinks: str, files: Files) -> None:
    """Let another query end the first one, and die when its batch 0 is decided, but not visible."""
    query = stores.start(*sinks, files=files, settings=ending(QUERY_ID))
    die_at(stores, query, "driver.decided", 0, query_id=OTHER)


def leaving(stores: Cluster, sink: str) -> Callable[..., None]:
    """A recovery during which a sink's store goes away."""
    recover = Participants.recover

    def leave_and_recover(*arguments: Any) -> None:
        stores.world.store(sink).unreachable = True
        recover(*arguments)

    return leave_and_recover


# -- the new query already uses one of the ended query's sinks -----------------------------------------------------------


@pytest.fixture
def heir(stores: Cluster, new: LocalFiles) -> Query:
    """Another query, with sink a, took over the rest after the last batch of the query with sinks b, p, s and l."""
    stores.start("b", "p", "s", "l").run(0, 1)
    query = stores.start("a", "p", "s", "l", files=new, settings=ending(QUERY_ID))
    query.run(0, query_id=OTHER)
    return query


@pytest.mark.parametrize("at", [1, 2])
def test_an_added_sink_does_not_end_what_the_query_itself_has_decided(
    at: int, stores: Cluster, heir: Query, new: LocalFiles
) -> None:
    """The next start replays the decided batch, or Spark has moved past it."""
    die_at(stores, heir, "driver.decided", 1, query_id=OTHER)
    with pytest.raises(InDoubtError):
        stores.start("a", "b", "p", "s", "l", files=new, settings=add_b()).run(at, query_id=OTHER)
    for sink in "psl":
        assert ended(stores, sink) == []
        assert shown(stores, sink) == sorted(all_rows(0, 1, 0, 1))


def test_a_store_that_no_longer_proves_an_older_batch_gives_no_wrong_advice(
    stores: Cluster, heir: Query, new: LocalFiles
) -> None:
    """Seen: restore the newest checkpoint, or restart when every broker responds. Neither helps."""
    heir.run(1, query_id=OTHER)
    with pytest.raises(InDoubtError, match=r"has decided later batches in the sinks \['l'\]") as doubt:
        stores.start("a", "b", "p", "s", "l", files=new, settings=add_b()).run(2, query_id=OTHER)
    assert "Restore" not in str(doubt.value) and "broker" not in str(doubt.value)
    assert (len(doubt.value.committed), doubt.value.lost, len(doubt.value.unknown)) == (9, (), 3)
    settings = advised(doubt.value)
    assert settings.overrides.abandoned == {Abandon(1, QUERY_ID, ("l",))}
    stores.start("a", "b", "p", "s", "l", files=new, settings=settings).run(2, query_id=OTHER)
    assert shown(stores, "b") == sorted(all_rows(0, 1, 2))
    stores.start("a", "b", "p", "s", "l", files=new).run(3, query_id=OTHER)


@pytest.fixture
def left(stores: Cluster, new: LocalFiles) -> Cluster:
    """A query's batch 1 is decided in b's log, but invisible. Another query, with sink a, has taken l over since."""
    killed(stores, "b", "l")
    stores.start("a", "l", files=new, settings=ending(QUERY_ID)).run(0, query_id=OTHER)
    return stores


def test_an_override_for_one_sink_gives_up_nothing_in_another_one(left: Cluster, new: LocalFiles) -> None:
    """Seen: the user had checked l, and the rows in b were aborted without an error."""
    settings = passing(AddSink("b"), EndQuery(QUERY_ID), Abandon(1, QUERY_ID, ["l"]))
    left.world.store("b").unreachable = True
    with pytest.raises(CommitBlockedError, match="batch 1 of query query-a"):
        left.start("a", "b", "l", files=new, settings=settings).run(1, query_id=OTHER)
    assert len(left.world.store("b").pending()) == 3
    left.world.store("b").unreachable = False
    left.start("a", "b", "l", files=new, settings=settings).run(1, query_id=OTHER)
    assert shown(left, "b") == sorted(all_rows(0, 1, 1))


def test_one_error_names_everything_that_an_override_would_give_up(left: Cluster, new: LocalFiles) -> None:
    left.world.store("b").expire()
    with pytest.raises(InDoubtError) as doubt:
        left.start("a", "b", "l", files=new, settings=add_b()).run(1, query_id=OTHER)
    assert doubt.value.lost == ("b.1.5", "b.1.4", "b.1.3")
    assert len(doubt.value.unknown) == 3
    settings = advised(doubt.value)
    left.start("a", "b", "l", files=new, settings=settings).run(1, query_id=OTHER)
    assert shown(left, "b") == sorted(all_rows(0, 1))


def test_an_override_without_a_query_id_gives_up_no_batch_of_an_ended_query(left: Cluster, new: LocalFiles) -> None:
    """The number was meant for this query's own batch."""
    left.world.store("b").expire()
    with pytest.raises(InDoubtError):
        left.start("a", "b", "l", files=new, settings=passing(AddSink("b"), EndQuery(QUERY_ID), Abandon(1))).run(
            1, query_id=OTHER
        )


# -- several queries end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["a", "z"])
def test_two_ended_queries_may_have_used_the_same_sink(
    log: str, stores: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """The newer decision is in the deciding log, or in the other one. Seen: completing one of them swept the other one."""
    stores.start("b", "p", "s").run(0, 1)
    second = stores.start(log, "p", "s", files=new, settings=ending(QUERY_ID))
    second.run(0, query_id=OTHER)
    die_at(stores, second, "driver.decided", 1, query_id=OTHER)
    stores.start(log, "b", "p", "s", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    for sink in "ps":
        assert ended(stores, sink) == []
        assert shown(stores, sink) == sorted(all_rows(0, 1, 0, 1, 0))


@pytest.mark.parametrize("log", ["a", "z"])
def test_the_older_of_two_decisions_in_a_table_gives_no_wrong_advice(
    log: str, stores: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """The older decision is in the deciding log, or in the other one."""
    stores.start("b", "l").run(0, 1)
    stores.start(log, "l", files=new, settings=ending(QUERY_ID)).run(0, 1, query_id=OTHER)
    with pytest.raises(InDoubtError, match=r"batch 1 of query query-a .* in the sinks \['l'\]") as doubt:
        stores.start(log, "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    stores.start(log, "b", "l", files=newest, settings=advised(doubt.value)).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 1, 0))


def test_one_error_names_all_batches_that_are_not_complete(
    cluster: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    killed(cluster, "b")
    killed(cluster, "m", query_id=THIRD, files=new)
    for name in "bm":
        cluster.world.store(name).expire()
    cluster.start("a", files=newest).run(0, query_id=OTHER)
    settings = passing(AddSink("b"), AddSink("m"), EndQuery(QUERY_ID), EndQuery(THIRD))
    with pytest.raises(InDoubtError, match=r"batch 1 of query query-a .* batch 1 of query query-c") as doubt:
        cluster.start("a", "b", "m", files=newest, settings=settings).run(1, query_id=OTHER)
    cluster.start("a", "b", "m", files=newest, settings=advised(doubt.value)).run(1, query_id=OTHER)
    assert (len(doubt.value.lost), shown(cluster, "a")) == (6, sorted(all_rows(0, 1)))


@pytest.mark.parametrize(("older", "newer"), ["ab", "ba"])
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_table_proves_an_older_decision_before_a_newer_one_is_committed(
    older: str, newer: str, *, is_interrupted: bool, stores: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """Seen: nothing showed any longer whether the older decision's rows were visible, although the start could prove it."""
    stores.start(older, "l").run(0, 1)
    succeed(stores, newer, "l", files=new)
    if is_interrupted:
        last = stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER))
        die_at(stores, last, "driver.recovered", 0, query_id=THIRD)
    stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 0))


def test_a_query_that_returns_need_not_prove_its_own_batch_after_its_successors(
    stores: Cluster, new: LocalFiles
) -> None:
    """Seen: after one failure, each start said that it could not prove the query's own batch in time."""
    stores.start("a", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    settings = passing(AddSink("b"), EndQuery(OTHER))
    die_at(stores, stores.start("a", "b", "l", settings=settings), "driver.recovered", 2)
    stores.start("a", "b", "l", settings=settings).run(2)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 2))


def test_a_log_stays_open_if_no_newer_decision_may_destroy_the_proof(
    stores: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """The next start must prove the batch again, because the store may have lost it in the meantime."""
    killed(stores, "a", "s")
    killed(stores, "b", query_id=OTHER, files=new)
    die_at(
        stores,
        stores.start("a", "b", "s", files=newest, settings=ending(QUERY_ID, OTHER)),
        "driver.recovered",
        0,
        query_id=THIRD,
    )
    views = {name: fold(OwnLog(stores.world.logs[name]).inspect()) for name in "ab"}
    assert views["a"].decision is not None and views["a"].decision.query_id == QUERY_ID
    assert views["b"].decision is None


def test_a_table_keeps_the_proof_of_a_batch_while_an_older_one_is_unproven(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the newer decision was committed, and nothing could prove the older one any longer."""
    stores.start("a", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    commit, failing = OwnedCommitter.commit, [True]

    def fail_once(committer: OwnedCommitter, handles: Any, scan_start: Any) -> Any:
        if handles and failing:
            failing.clear()
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        return commit(committer, handles, scan_start)

    monkeypatch.setattr(OwnedCommitter, "commit", fail_once)
    with pytest.raises(CommitBlockedError):
        stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 0))


def not_closing(query_id: str) -> Callable[..., int]:
    """An append that fails if it would close a query's log."""
    append = OwnLog.append

    def fail(log: OwnLog, records: Any) -> int:
        if isinstance(records[0], Begin) and records[0].query_id == query_id:
            raise RetriableError("the log is away")
        return append(log, records)

    return fail


def unprovable(sink: str, batch_id: int) -> Callable[..., Any]:
    """A commit that proves nothing about a batch in one sink."""
    commit = OwnedCommitter.commit

    def commit_elsewhere(committer: OwnedCommitter, handles: Any, scan_start: Any) -> Any:
        if committer.name == sink and handles and handles[0].transaction.startswith(f"{sink}-{batch_id}-"):
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        return commit(committer, handles, scan_start)

    return commit_elsewhere


@pytest.mark.parametrize(("older", "newer"), ["ab", "ba"])
def test_a_table_keeps_the_proof_of_a_batch_that_is_unproven_in_another_sink(
    older: str, newer: str, stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the newer decision was committed in the table. The next start then advised to insert rows that were visible."""
    stores.start(older, "s", "l").run(0, 1)
    succeed(stores, newer, "l", files=new)
    with monkeypatch.context() as patched:
        patched.setattr(OwnedCommitter, "commit", unprovable("s", 1))
        with pytest.raises(CommitBlockedError):
            stores.start("a", "b", "s", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    stores.start("a", "b", "s", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert shown(stores, "s") == sorted(all_rows(0, 1, 0))
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 0))


def test_a_query_that_returns_too_late_for_its_lost_rows_says_so(stores: Cluster, new: LocalFiles) -> None:
    """A table that shows a newer batch can no longer publish an older one. Seen: each start asked for another restart."""
    killed(stores, "a", "l")
    succeed(stores, "b", "l", files=new)
    settings = passing(AddSink("b"), EndQuery(OTHER))
    for _ in range(2):
        with pytest.raises(InDoubtError, match="another query has decided later batches in the sinks") as late:
            stores.start("a", "b", "l", settings=settings).run(1)
        assert advised(late.value).overrides.abandoned == {Abandon(1, QUERY_ID, ("l",))}
    given_up = passing(AddSink("b"), EndQuery(OTHER), Abandon(1, QUERY_ID, ("l",)))
    stores.start("a", "b", "l", settings=given_up).run(1, 2)
    assert shown(stores, "a") == sorted(all_rows(0, 1, 2))
    assert shown(stores, "l") == sorted(all_rows(0, 0, 2))


def test_a_query_that_returns_to_a_store_that_fails_need_not_give_up_its_batch(
    stores: Cluster, new: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store proves every decision, so only its failure hides the proof, and not the other query's newer decision."""
    killed(stores, "a", "s")
    succeed(stores, "b", "s", files=new)
    settings = passing(AddSink("b"), EndQuery(OTHER))
    returning = stores.start("a", "b", "s", settings=settings)
    die_at(stores, returning, "driver.decided", 1)  # the lost rows are written again
    with monkeypatch.context() as patched:
        patched.setattr(OwnedCommitter, "commit", lambda _, handles, __: dict.fromkeys(handles, Evidence.UNKNOWN))
        patched.setattr(OwnedCommitter, "blockers", lambda _: ["sink 's': its server is away"])
        with pytest.raises(CommitBlockedError, match="its server is away"):
            stores.start("a", "b", "s", settings=settings).run(1)
    stores.start("a", "b", "s", settings=settings).run(1)
    assert shown(stores, "s") == sorted(all_rows(0, 1, 0))


@pytest.mark.parametrize(("older", "newer"), ["ab", "ba"])
def test_the_error_for_a_lost_batch_gives_up_no_batch_that_waits_for_it(
    older: str, newer: str, stores: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """Seen: the error did not name the lost batch, and its override gave up the good rows of the batch that waited."""
    query = stores.start(older, "l")
    query.run(0)
    die_at(
        stores, query, "driver.decided", 1
    )  # the next query's start ends its transactions in "l", which it does not know
    succeed(stores, newer, "l", files=new)
    with pytest.raises(InDoubtError) as lost:
        stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert advised(lost.value).overrides.abandoned == {Abandon(1, QUERY_ID, ("l",))}
    stores.start("a", "b", "l", files=newest, settings=advised(lost.value)).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 0, 0))


@pytest.mark.parametrize(("older", "newer"), ["ab", "ba"])
def test_the_error_for_a_batch_that_waits_names_the_cause_and_gives_up_only_the_older_batch(
    older: str, newer: str, stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.start(older, "l").run(0, 1)
    succeed(stores, newer, "l", files=new)
    commit = OwnedCommitter.commit

    def fail(committer: OwnedCommitter, handles: Any, scan_start: Any) -> Any:
        return dict.fromkeys(handles, Evidence.UNKNOWN) if handles else commit(committer, handles, scan_start)

    with monkeypatch.context() as patched:
        patched.setattr(OwnedCommitter, "commit", fail)
        patched.setattr(OwnedCommitter, "blockers", lambda _: ["sink 'l': its server is away"])
        with pytest.raises(CommitBlockedError) as blocked:
            stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert "sink 'l': its server is away. Fix the cause" in str(blocked.value)
    # In the other order, the batch that waits is in the log in which the query decides, so it is judged later.
    waits = f"batch 0 of query {OTHER} is decided. In the sinks ['l'], it waits for batch 1 of query {QUERY_ID}"
    assert (waits in str(blocked.value)) is (older == "a")
    assert advised(blocked.value).overrides.abandoned == {Abandon(1, QUERY_ID, ("l",))}
    stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 0))


def lose(stores: Cluster, sink: str, batch_id: int) -> None:
    """Roll back a batch's transactions in a sink after they were decided."""
    for one in stores.world.store(sink).transactions.values():
        if one.batch_id == batch_id:
            one.state = "aborted"


@pytest.mark.parametrize("batch", [1, 2])  # Spark replays the batch, or has passed it
def test_a_query_that_returns_can_give_up_its_batch_in_one_sink(
    batch: int, stores: Cluster, new: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the next start refused with the same advice, because another query's batch still waited for this batch."""
    stores.start("a", "s", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    monkeypatch.setattr(OwnedCommitter, "commit", unprovable("s", 1))
    monkeypatch.setattr(OwnedCommitter, "blockers", lambda one: ["the markers are gone"] if one.name == "s" else [])
    with pytest.raises(CommitBlockedError, match="the markers are gone") as blocked:
        stores.start("a", "b", "s", "l", settings=passing(AddSink("b"), EndQuery(OTHER))).run(batch)
    assert advised(blocked.value).overrides.abandoned == {Abandon(1, QUERY_ID, ("s",))}
    stores.start("a", "b", "s", "l", settings=advised(blocked.value)).run(batch)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, *range(2, batch + 1)))


@pytest.mark.parametrize(("older", "newer"), ["ab", "ba"])
def test_a_table_keeps_the_proof_of_a_batch_whose_log_could_not_be_closed(
    older: str, newer: str, stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.start(older, "l").run(0, 1)
    succeed(stores, newer, "l", files=new)
    with monkeypatch.context() as patched:
        patched.setattr(OwnLog, "append", not_closing(QUERY_ID))
        with pytest.raises(RetriableError, match="the log is away"):
            stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 0))


@pytest.mark.parametrize(("older", "newer"), ["ab", "ba"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_batch_can_be_given_up_in_one_sink_and_proven_in_a_table(
    older: str,
    newer: str,
    last: int,
    *,
    is_interrupted: bool,
    stores: Cluster,
    new: LocalFiles,
    newest: LocalFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: after the user had followed the first error, the second one advised to insert rows that were visible."""
    stores.start(older, "l").run(*range(last + 1))
    succeed(stores, newer, "l", files=new)
    lose(stores, older, last)
    with pytest.raises(InDoubtError) as lost:
        stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert advised(lost.value).overrides.abandoned == {Abandon(last, QUERY_ID, (older,))}
    if is_interrupted:  # the newer batch is committed, but a sink fails before the start has recovered
        recover = Participants.recover

        def recover_and_fail(participants: Participants, one: LastDecision, *others: Any) -> None:
            recover(participants, one, *others)
            if one.decision is not None and one.decision.query_id == OTHER:
                raise RetriableError("a sink has failed")

        with monkeypatch.context() as patched:
            patched.setattr(Participants, "recover", recover_and_fail)
            with pytest.raises(RetriableError, match="a sink has failed"):
                stores.start("a", "b", "l", files=newest, settings=advised(lost.value)).run(0, query_id=THIRD)
    stores.start("a", "b", "l", files=newest, settings=advised(lost.value)).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(*range(last + 1), 0, 0))
    assert shown(stores, older) == sorted(all_rows(*range(last), 0))


def test_a_sink_that_was_proven_stays_proven_after_a_repair_in_another_sink(stores: Cluster, new: LocalFiles) -> None:
    """Seen: the table proved the batch, then the other query's newer batch, and then nothing about the first any longer."""
    stores.start("a", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    lose(stores, "a", 1)
    stores.start("a", "b", "l", settings=passing(AddSink("b"), EndQuery(OTHER))).run(1, 2)
    assert shown(stores, "a") == sorted(all_rows(0, 1, 2))
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 2))


def test_a_store_that_fails_during_a_repair_does_not_count_as_proven(stores: Cluster) -> None:
    """The store may have been restored after the start had proven its transactions. Seen: the query went on without rows."""
    stores.start("a", "s").run(0, 1)
    lose(stores, "a", 1)

    def leave() -> None:
        stores.world.store("s").unreachable = True

    arm("driver.decided", leave)
    with pytest.raises(CommitBlockedError):
        stores.start("a", "s").run(1)
    stores.world.store("s").unreachable = False
    lose(stores, "s", 1)
    stores.start("a", "s").run(1)
    assert shown(stores, "a") == shown(stores, "s") == all_rows(0, 1)


def test_a_staged_batch_is_published_although_its_override_is_still_in_the_code(
    stores: Cluster, new: LocalFiles
) -> None:
    """The batch's transactions in one sink may expire after the user has been told to give them up."""
    query = stores.start("a", "l", staging=True)
    query.run(0)
    die_at(stores, query, "driver.committed", 1)
    succeed(stores, "b", "l", files=new)
    lose(stores, "a", 1)
    settings = passing(AddSink("b"), EndQuery(OTHER), Abandon(1, QUERY_ID, ("a",)))
    stores.start("a", "b", "l", settings=settings, staging=True).run(2)
    assert shown(stores, "a") == sorted(all_rows(0, 1, 2))
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 2))


def test_a_batch_that_waits_is_not_given_up_untried(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: an override that stayed in the code gave up rows that the next start would have committed."""
    stores.start("a", "s", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    given_up = passing(EndQuery(QUERY_ID), EndQuery(OTHER), Abandon(0, OTHER))
    with monkeypatch.context() as patched:
        patched.setattr(OwnedCommitter, "commit", unprovable("s", 1))
        with pytest.raises(CommitBlockedError):
            stores.start("a", "b", "s", "l", files=newest, settings=given_up).run(0, query_id=THIRD)
    stores.start("a", "b", "s", "l", files=newest, settings=given_up).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 0))


@pytest.mark.parametrize("is_adopting", [False, True])
def test_a_batch_that_spark_has_passed_is_proven_before_a_newer_one(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, *, is_adopting: bool
) -> None:
    """No replay can write its lost rows again. Seen: after the first error, the second one advised to insert visible rows."""
    stores.start("a", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    lose(stores, "a", 1)
    if is_adopting:
        start, files = (0, THIRD), newest
        settings = passing(EndQuery(QUERY_ID), EndQuery(OTHER), AdoptQuery(THIRD))
    else:
        start, files, settings = (2, QUERY_ID), None, passing(AddSink("b"), EndQuery(OTHER))
    with pytest.raises(InDoubtError) as lost:
        stores.start("a", "b", "l", files=files, settings=settings).run(start[0], query_id=start[1])
    assert advised(lost.value).overrides.abandoned == {Abandon(1, QUERY_ID, ("a",))}
    stores.start("a", "b", "l", files=files, settings=advised(lost.value)).run(start[0], query_id=start[1])
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, start[0]))


def test_a_batch_that_could_not_be_tried_is_not_given_up(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the newer batch was committed, and the older one's proof in the table was lost, because another sink was away."""
    stores.start("a", "s", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    given_up = passing(EndQuery(QUERY_ID), EndQuery(OTHER), Abandon(1, QUERY_ID, ("s",)))
    with monkeypatch.context() as patched:
        patched.setattr(Participants, "recover", leaving(stores, "s"))
        with pytest.raises((CommitBlockedError, RetriableError)):
            stores.start("a", "b", "s", "l", files=newest, settings=given_up).run(0, query_id=THIRD)
    stores.world.store("s").unreachable = False
    stores.start("a", "b", "s", "l", files=newest, settings=given_up).run(0, query_id=THIRD)
    assert shown(stores, "l") == sorted(all_rows(0, 1, 0, 0))


def test_a_log_that_cannot_be_closed_does_not_delay_the_batches_in_other_logs(
    cluster: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided transactions that stay open may expire."""
    killed(cluster, "b")
    killed(cluster, "m", query_id=THIRD, files=new)
    cluster.start("a", files=newest).run(0, query_id=OTHER)
    settings = passing(AddSink("b"), AddSink("m"), EndQuery(QUERY_ID), EndQuery(THIRD))
    with monkeypatch.context() as patched:
        patched.setattr(OwnLog, "append", not_closing(QUERY_ID))
        with pytest.raises(RetriableError, match="the log is away"):
            cluster.start("a", "b", "m", files=newest, settings=settings).run(1, query_id=OTHER)
    assert shown(cluster, "m") == all_rows(0, 1)


def test_a_store_that_fails_while_it_is_read_does_not_count_as_one_that_lacks_the_proof(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the error said that a restart changes nothing, although the restart proved the batch."""
    stores.start("a", "s").run(0, 1)
    stores.start("b", "s", files=new, settings=ending(QUERY_ID)).run(0, query_id=OTHER)
    prove, away = OwnedCommitter.prove, list[str]()

    def fail(committer: OwnedCommitter, handles: Any, scan_start: Any) -> Any:
        if handles and handles[0].transaction.startswith("s-1-"):
            away.append("its server is away")
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        return prove(committer, handles, scan_start)

    with monkeypatch.context() as patched:
        patched.setattr(OwnedCommitter, "prove", fail)
        patched.setattr(OwnedCommitter, "blockers", lambda _: [*away])
        with pytest.raises(CommitBlockedError, match="its server is away"):
            stores.start("a", "b", "s", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    stores.start("a", "b", "s", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert shown(stores, "s") == sorted(all_rows(0, 1, 0, 0))


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_error_for_a_batch_that_waits_in_one_sink_says_what_blocks_it_in_another(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """Seen: the error named only the older batch, and said that no data was lost."""
    stores.start("a", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    store, commit = stores.world.store("b"), OwnedCommitter.commit
    if is_lost:
        store.expire()
    else:
        store.unreachable = True

    def fail(committer: OwnedCommitter, handles: Any, scan_start: Any) -> Any:
        return dict.fromkeys(handles, Evidence.UNKNOWN) if handles else commit(committer, handles, scan_start)

    with monkeypatch.context() as patched:
        patched.setattr(OwnedCommitter, "commit", fail)
        with pytest.raises(CommitBlockedError) as blocked:
            stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    found = "some of its transactions are lost" if is_lost else "its commit could not be completed in time"
    assert f"batch 0 of query {OTHER} is decided, but {found}" in str(blocked.value)
    assert f"Abandon(0, '{OTHER}', sinks=['b'])" in str(blocked.value)
    assert "In the sinks ['l'], it waits for" in str(blocked.value)


def test_batches_that_wait_for_each_other_can_be_given_up(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was restored from a backup may show the opposite order. The error then named no way to continue."""
    stores.start("a", "l").run(0, 1)
    succeed(stores, "b", "l", files=new)
    monkeypatch.setattr(LastDecision, "must_be_closed_before", lambda one, other, _: one is not other)
    with pytest.raises(CommitBlockedError) as blocked:
        stores.start("a", "b", "l", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert "waits for" not in str(blocked.value)
    assert "Abandon(1, 'query-a'" in str(blocked.value)
    assert "Abandon(0, 'query-b'" in str(blocked.value)


def test_an_override_gives_up_no_batch_that_is_only_blocked(
    cluster: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """Seen: the override for the lost batch also gave up the batch of a broker that was away."""
    killed(cluster, "b")
    killed(cluster, "m", query_id=THIRD, files=new)
    cluster.world.store("b").expire()
    cluster.start("a", files=newest).run(0, query_id=OTHER)
    settings = passing(AddSink("b"), AddSink("m"), EndQuery(QUERY_ID), EndQuery(THIRD))
    cluster.world.store("m").unreachable = True
    with pytest.raises(CommitBlockedError) as blocked:
        cluster.start("a", "b", "m", files=newest, settings=settings).run(1, query_id=OTHER)
    assert advised(blocked.value).overrides.abandoned == {Abandon(1, QUERY_ID)}
    cluster.world.store("m").unreachable = False
    cluster.start("a", "b", "m", files=newest, settings=advised(blocked.value)).run(1, query_id=OTHER)
    assert shown(cluster, "m") == sorted(all_rows(0, 1, 1))


def test_a_store_that_fails_does_not_delay_the_batches_in_other_stores(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the other query's decided transactions stayed open, and would have expired."""
    killed(stores, "a", "s")
    killed(stores, "b", query_id=OTHER, files=new)
    monkeypatch.setattr(Participants, "recover", leaving(stores, "s"))
    with pytest.raises((CommitBlockedError, RetriableError)):
        stores.start("a", "b", "s", files=newest, settings=ending(QUERY_ID, OTHER)).run(0, query_id=THIRD)
    assert shown(stores, "b") == all_rows(0, 1)


@pytest.mark.parametrize("sink", ["s", "l"])
def test_what_a_start_could_not_prove_says_nothing_about_later_batches(
    sink: str, stores: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """Seen: when the store failed, the error advised to insert the rows of a batch that the next start committed."""
    stores.start("a", sink).run(0, 1)
    stores.start("b", sink, files=new, settings=ending(QUERY_ID)).run(0, query_id=OTHER)
    settings = passing(EndQuery(QUERY_ID), EndQuery(OTHER), Abandon(1, QUERY_ID, ["l"]))
    last = stores.start("a", "b", sink, files=newest, settings=settings)
    last.run(0, query_id=THIRD)
    arm("driver.decided", lambda: setattr(stores.world.store(sink), "unreachable", True))
    with pytest.raises(CommitBlockedError):
        last.run(1, query_id=THIRD)
    stores.world.store(sink).unreachable = False
    stores.start("a", "b", sink, files=newest, settings=settings).run(1, query_id=THIRD)
    assert shown(stores, sink) == sorted(all_rows(0, 1, 0, 0, 1))


def test_a_lost_batch_of_an_ended_query_does_not_delay_the_querys_own_batch(cluster: Cluster, new: LocalFiles) -> None:
    """Seen: the query's own decided transactions stayed open, and would have expired."""
    killed(cluster, "b")
    cluster.world.store("b").expire()
    die_at(cluster, cluster.start("a", files=new), "driver.decided", 0, query_id=OTHER)
    with pytest.raises(InDoubtError, match="batch 1 of query query-a"):
        cluster.start("a", "b", files=new, settings=add_b()).run(0, query_id=OTHER)
    assert shown(cluster, "a") == all_rows(0)


def test_an_existing_query_takes_over_all_sinks_of_another_one(cluster: Cluster, new: LocalFiles) -> None:
    """Seen: only one sink could be added at a time. In the only order that was left, the decided batch was swept."""
    killed(cluster, "b", "p")
    cluster.start("a", files=new).run(0, query_id=OTHER)
    with pytest.raises(
        RefusedStartError, match="Pass these sinks again", check=lambda error: error.case == "sink left out"
    ):
        cluster.start("a", "b", files=new, settings=add_b()).run(1, query_id=OTHER)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "binding") as refused:
        cluster.start("a", "b", "p", files=new, settings=add_b()).run(1, query_id=OTHER)
    cluster.start("a", "b", "p", files=new, settings=advised(refused.value)).run(1, query_id=OTHER)
    assert shown(cluster, "b") == shown(cluster, "p") == sorted(all_rows(0, 1, 1))


# -- a completed decision is not the new query's own ---------------------------------------------------------------------


def start(cluster: Cluster, files: Files) -> Query:
    return cluster.start("a", "b", "s", files=files, settings=ending(QUERY_ID, THIRD))


@pytest.mark.parametrize("point", ["driver.acquired", "driver.recovered", "driver.bound", "driver.confirmed"])
@pytest.mark.parametrize("third", ["a", "as"])
def test_a_completed_decision_of_an_ended_query_does_not_look_like_a_lost_one_of_this_query(
    third: str, point: str, stores: Cluster, new: LocalFiles, newest: LocalFiles
) -> None:
    """The new query's first batch fails. Seen: each later start said that it must not write this batch again."""
    stores.start(*third, files=newest).run(0, query_id=THIRD)
    stores.start("b", "s", settings=ending(THIRD)).run(0, 1)
    die_at(stores, start(stores, new), point, 0, query_id=OTHER)
    start(stores, new).run(0, 1, query_id=OTHER)
    assert shown(stores, "b") == sorted([*twice(0, 1), *all_rows(1)])


def test_a_completed_decision_is_remembered_even_if_its_log_has_a_new_owner(
    stores: Cluster, new: LocalFiles, newest: LocalFiles, tmp_path: Path
) -> None:
    stores.start("a", files=newest).run(0, query_id=THIRD)
    killed(stores, "b", "s")
    die_at(stores, start(stores, new), "driver.recovered", 0, query_id=OTHER)
    settings = passing(EndQuery(OTHER), EndQuery(QUERY_ID))
    stores.start("b", files=LocalFiles(tmp_path / "fourth"), settings=settings).run(0, query_id="query-d")
    stores.start("a", "b", "s", files=new, settings=ending(THIRD, "query-d")).run(0, query_id=OTHER)
    assert shown(stores, "s") == twice(0, 1)
