"""A start that ends queries with ``EndQuery`` completes their last batches, in whichever of the sinks' logs the decisions are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import OTHER, die_at
from tests.unit.ended_support import THIRD, add_b, advised, cluster, ending, killed, new, shown, twice
from tests.unit.fake_sink import QUERY_ID, Cluster, OwnLog, Query, all_rows
from twopc.errors import CommitBlockedError, DecisionLogDamagedError, InDoubtError, RefusedStartError
from twopc.files import LocalFiles
from twopc.override import Abandon, EndQuery, Overrides
from twopc.records import Begin
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.files import Files

__all__ = ["cluster", "new"]

#: Each of them sorts before, or after, the sink that is called "m".
EXTRA = ["a", "z"]


def state(cluster: Cluster) -> list[object]:
    """What a refused start must not change."""
    logs = [[*OwnLog(files).inspect().entries] for files in cluster.world.logs.values()]
    return [logs, [(one.driver_epoch, one.pending(), one.visible()) for one in cluster.world.stores.values()]]


# -- one query ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", EXTRA)
def test_a_new_sink_with_a_log_does_not_hide_the_ended_querys_decision(
    extra: str, cluster: Cluster, new: LocalFiles
) -> None:
    """Seen: the first sink's empty log was taken, the sweep aborted the decided batch, and no error was raised."""
    killed(cluster, "m")
    cluster.start(extra, "m", files=new, settings=ending(QUERY_ID)).run(0, query_id=OTHER)
    assert (shown(cluster, "m"), shown(cluster, extra)) == (twice(0, 1), all_rows(0))
    assert [one.record for one in OwnLog(cluster.world.logs["m"]).inspect().entries if isinstance(one.record, Begin)][
        -1
    ].ends == QUERY_ID  # the new query decides in the same log, which records the end
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "ended query"):
        cluster.start("m").run(1)
    cluster.start(extra, "m", files=new).run(0, 1, query_id=OTHER)
    assert shown(cluster, extra) == all_rows(0, 1)


POINTS = [
    "driver.inspected",
    "driver.acquired",
    "driver.committing",
    "driver.recovered",
    "driver.bound",
    "driver.decided",
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("again", [["m", "a"], ["b", "m", "a"], ["m"]], ids="+".join)
def test_a_start_that_dies_half_way_and_changes_its_sinks_loses_no_decided_row(
    point: str, again: list[str], cluster: Cluster, new: LocalFiles
) -> None:
    killed(cluster, "m")
    die_at(cluster, cluster.start("a", "m", files=new, settings=ending(QUERY_ID)), point, 0, query_id=OTHER)
    is_bound = bool(new.names(""))
    if point != "driver.decided":  # a later start must still name the query
        with pytest.raises(RefusedStartError) as refused:
            cluster.start("a", "m", files=new).run(0, query_id=OTHER)
        assert f"override=EndQuery({QUERY_ID!r})" in str(refused.value)
    if is_bound and len(again) != 2:
        with pytest.raises(RefusedStartError, check=lambda error: error.case == "binding"):
            cluster.start(*again, files=new, settings=ending(QUERY_ID)).run(0, query_id=OTHER)
        again = ["m", "a"]
    cluster.start(*again, files=new, settings=ending(QUERY_ID)).run(0, query_id=OTHER)
    assert shown(cluster, "m") == twice(0, 1)


def test_the_log_of_an_ended_query_is_found_under_another_sink_name(
    cluster: Cluster, new: LocalFiles, tmp_path: Path
) -> None:
    """A Kafka sink may have another name, but the same ledger. The decision's transactions belong to the old name."""
    killed(cluster, "m")
    cluster.world.logs["renamed"] = LocalFiles(tmp_path / "m")
    before = state(cluster)
    with pytest.raises(RefusedStartError, match="'m'", check=lambda error: error.case == "sink left out"):
        cluster.start("a", "renamed", files=new, settings=ending(QUERY_ID)).run(0, query_id=OTHER)
    assert state(cluster) == before


# -- its decisions are in a log in which the new query does not decide ---------------------------------------------------


@pytest.fixture
def both(cluster: Cluster, tmp_path: Path) -> Cluster:
    """A query has died: its batch 1 is decided in b's log, for sinks b and p. Another query, with sink a, was stopped."""
    killed(cluster, "b", "p")
    cluster.start("a", files=LocalFiles(tmp_path / "third")).run(0, query_id=THIRD)
    return cluster


def merged(both: Cluster, new: Files, *sinks: str, abandon: bool = False) -> Query:
    """A query with a new checkpoint replaces both. It decides in a's log."""
    settings = ending(QUERY_ID, THIRD, abandon=Abandon(1, QUERY_ID) if abandon else None)
    return both.start(*(sinks or ("a", "b", "p")), files=new, settings=settings)


@pytest.mark.parametrize("first", ["a", "plain"])
def test_an_added_sink_completes_the_batch_that_the_ended_query_decided_in_its_log(
    first: str, cluster: Cluster, new: LocalFiles
) -> None:
    """The other query's decisions are in a's log, or in its checkpoint. Seen: the sweep aborted the decided batch."""
    killed(cluster, "b")
    cluster.start(first, files=new).run(0, query_id=OTHER)
    with pytest.raises(RefusedStartError, match=rf"override=\[AddSink\('b'\), EndQuery\('{QUERY_ID}'\)\]"):
        cluster.start(first, "b", files=new, settings=ending(add_sink="b")).run(1, query_id=OTHER)
    cluster.start(first, "b", files=new, settings=add_b()).run(1, query_id=OTHER)
    assert shown(cluster, "b") == sorted(all_rows(0, 1, 1))
    forget(cluster, "b")
    cluster.start(first, "b", files=new).run(1, 2, query_id=OTHER)
    assert shown(cluster, "b") == all_rows(1, 2)


def forget(cluster: Cluster, sink: str) -> None:
    """The store deletes the evidence for the ended query's transactions, and a start that asks for it fails."""
    of = cluster.world.store(sink).transactions
    for name in [name for name, one in of.items() if one.query_id == QUERY_ID]:
        del of[name]


@pytest.mark.parametrize("sinks", ["ab", "ba"])
@pytest.mark.parametrize("names", [[QUERY_ID, THIRD], [THIRD, QUERY_ID]])
def test_a_query_that_replaces_two_queries_completes_the_last_batches_of_both(
    sinks: str, names: list[str], cluster: Cluster, new: LocalFiles, tmp_path: Path
) -> None:
    """Seen: each message named the other query, and two EndQuery were an error."""
    killed(cluster, "b")
    killed(cluster, "a", query_id=THIRD, files=LocalFiles(tmp_path / "third"))
    overrides = Overrides.of([EndQuery(name) for name in names])
    cluster.start(*sinks, files=new, settings=Settings(overrides=overrides)).run(0, query_id=OTHER)
    assert shown(cluster, "a") == shown(cluster, "b") == twice(0, 1)
    cluster.start(*sinks, files=new).run(1, query_id=OTHER)
    assert shown(cluster, "a") == shown(cluster, "b") == sorted([*twice(0, 1), *all_rows(1)])


@pytest.mark.parametrize("passed", [[], [QUERY_ID], [THIRD]])
def test_the_messages_lead_to_both_overrides(
    passed: list[str], cluster: Cluster, new: LocalFiles, tmp_path: Path
) -> None:
    killed(cluster, "b")
    killed(cluster, "a", query_id=THIRD, files=LocalFiles(tmp_path / "third"))
    before, overrides = state(cluster), ending(*passed)
    for _ in range(2):
        with pytest.raises(RefusedStartError) as refused:
            cluster.start("a", "b", files=new, settings=overrides).run(0, query_id=OTHER)
        overrides = advised(refused.value)
        if len(overrides.overrides.end_query_ids) > 1:
            break
    assert state(cluster) == before
    cluster.start("a", "b", files=new, settings=overrides).run(0, query_id=OTHER)
    assert shown(cluster, "a") == shown(cluster, "b") == twice(0, 1)


@pytest.mark.parametrize("point", ["driver.acquired", "driver.committing", "driver.recovered", "driver.decided"])
@pytest.mark.parametrize("heir", [OTHER, "query-d"])
def test_a_start_that_dies_before_it_has_completed_the_batch_leaves_it_to_the_next_start(
    point: str, heir: str, both: Cluster, new: LocalFiles, tmp_path: Path
) -> None:
    """The dead start already owns the sink, so the owner does not show that a batch is incomplete."""
    die_at(both, merged(both, new), point, 0, query_id=OTHER)
    decided = all_rows(0) if point == "driver.decided" else []
    if heir == OTHER:
        merged(both, new).run(0, query_id=OTHER)
        assert shown(both, "b") == shown(both, "p") == twice(0, 1)
    else:
        settings = ending(OTHER) if decided else ending(OTHER, THIRD)
        fourth = LocalFiles(tmp_path / "fourth")
        both.start("a", "b", "p", files=fourth, settings=settings).run(0, query_id=heir)
        assert shown(both, "b") == shown(both, "p") == sorted([*twice(0, 1), *decided])


@pytest.mark.parametrize("point", ["driver.acquired", "driver.committing", "driver.recovered"])
def test_the_ended_query_may_come_back_if_the_new_query_has_decided_nothing(
    point: str, both: Cluster, new: LocalFiles
) -> None:
    die_at(both, merged(both, new), point, 0, query_id=OTHER)
    both.start("b", "p", settings=ending(OTHER)).run(1, 2)
    assert shown(both, "b") == shown(both, "p") == all_rows(0, 1, 2)


def test_a_start_that_dies_half_way_can_continue_without_the_override(cluster: Cluster, new: LocalFiles) -> None:
    """The override has permitted the first start to take the sink over."""
    killed(cluster, "b")
    cluster.start("a", files=new).run(0, query_id=OTHER)
    die_at(cluster, cluster.start("a", "b", files=new, settings=add_b()), "driver.acquired", 1, query_id=OTHER)
    cluster.start("a", "b", files=new, settings=ending(add_sink="b")).run(1, query_id=OTHER)
    assert shown(cluster, "b") == sorted(all_rows(0, 1, 1))


def test_a_start_without_one_of_the_ended_querys_sinks_is_refused(both: Cluster, new: LocalFiles) -> None:
    before = state(both)
    with pytest.raises(RefusedStartError, match="'p'", check=lambda error: error.case == "sink left out") as refused:
        merged(both, new, "a", "b").run(0, query_id=OTHER)
    assert f"Abandon(1, {QUERY_ID!r}, sinks=['p'])" in str(refused.value)
    assert state(both) == before
    merged(both, new, "a", "b", abandon=True).run(0, query_id=OTHER)
    assert shown(both, "b") == twice(0, 1)


def test_a_batch_whose_commit_cannot_be_proven_stops_the_start_and_is_not_swept(both: Cluster, new: LocalFiles) -> None:
    both.world.store("p").unreachable = True
    with pytest.raises(CommitBlockedError, match="batch 1"):
        merged(both, new).run(0, query_id=OTHER)
    both.world.store("p").unreachable = False
    merged(both, new).run(0, query_id=OTHER)
    assert shown(both, "b") == shown(both, "p") == twice(0, 1)


def test_a_batch_that_has_lost_transactions_stops_the_start_until_the_user_abandons_it(
    both: Cluster, new: LocalFiles
) -> None:
    both.world.store("p").expire(1)
    for _ in range(2):
        with pytest.raises(InDoubtError, match=rf"Abandon\(1, '{QUERY_ID}', sinks=\['p'\]\)\]"):
            merged(both, new).run(0, query_id=OTHER)
    merged(both, new, abandon=True).run(0, query_id=OTHER)
    merged(both, new).run(0, 1, query_id=OTHER)
    assert shown(both, "b") == sorted(all_rows(0, 0, 1, 1))
    assert len(shown(both, "p")) == len(all_rows(0, 0, 1, 1)) - 2


def test_equal_offsets_of_another_query_do_not_show_that_a_batch_is_complete(cluster: Cluster, new: LocalFiles) -> None:
    """Both queries read the same source at the same pace."""
    killed(cluster, "b", "p")
    cluster.start("a", files=new).run(0, 1, 2, query_id=OTHER)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "sink left out"):
        cluster.start("a", "b", files=new, settings=add_b()).run(3, query_id=OTHER)
    assert cluster.world.store("p").pending()


def test_two_ended_queries_may_each_have_a_sink_that_is_left_out(
    cluster: Cluster, new: LocalFiles, tmp_path: Path
) -> None:
    killed(cluster, "b", "p")
    killed(cluster, "a", "x", query_id=THIRD, files=LocalFiles(tmp_path / "third"))
    overrides = ending(QUERY_ID, THIRD)
    for _ in range(2):
        with pytest.raises(RefusedStartError, check=lambda error: error.case == "sink left out") as refused:
            cluster.start("a", "b", files=new, settings=overrides).run(0, query_id=OTHER)
        overrides = advised(refused.value)
    cluster.start("a", "b", files=new, settings=overrides).run(0, query_id=OTHER)
    assert shown(cluster, "a") == shown(cluster, "b") == twice(0, 1)


def test_a_repaired_batch_is_completed_with_its_new_transactions(both: Cluster, new: LocalFiles) -> None:
    both.world.store("p").expire(1)
    die_at(both, both.start("b", "p"), "driver.decided", 1)  # the repair is decided
    assert both.world.store("p").pending()
    merged(both, new).run(0, query_id=OTHER)
    assert shown(both, "b") == shown(both, "p") == twice(0, 1)


def test_a_damaged_log_may_hide_a_decision(both: Cluster, new: LocalFiles) -> None:
    log = both.world.logs["b"]
    log.remove(f"registers/{log.names('registers')[1]}")
    before = [one.pending() for one in both.world.stores.values()]
    with pytest.raises(DecisionLogDamagedError, match="missing"):
        merged(both, new).run(0, query_id=OTHER)
    assert [one.pending() for one in both.world.stores.values()] == before


def test_a_query_that_takes_its_sink_back_completes_the_batch_that_was_decided_meanwhile(
    both: Cluster, new: LocalFiles, tmp_path: Path
) -> None:
    merged(both, new).run(0, query_id=OTHER)
    fourth = both.start("b", "p", files=LocalFiles(tmp_path / "fourth"), settings=ending(OTHER, QUERY_ID))
    die_at(both, fourth, "driver.decided", 0, query_id="query-d")
    both.start("a", "b", "p", files=new, settings=ending("query-d")).run(0, 1, query_id=OTHER)
    assert shown(both, "b") == shown(both, "p") == sorted(all_rows(0, 0, 0, 1, 1))
