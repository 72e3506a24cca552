"""Rule 9: a start that ends other queries completes their last batches, in whichever of its sinks' ledgers the decisions are."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import opened
from tests.live.rules.schedules import Play, at, die, fed
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.errors import CommitBlockedError
from twopc.files import LocalFiles
from twopc.integration.verify.cluster import Cluster
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.sinks.kafka.reports import NO_ANSWER
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twopc.sinks.kafka import KafkaSink


def start(root: Path, sinks: Sequence[KafkaSink], *ended: str, add_sink: str | None = None) -> Coordinator:
    overrides = Overrides(end_query_ids=frozenset(ended), added_sinks={add_sink} if add_sink else frozenset())
    opened.append(Coordinator(sinks, LocalFiles(root / "twopc"), settings=Settings(overrides=overrides)))
    return opened[-1]


def batch(query_id: str, number: int) -> Batch:
    return Batch(query_id, number, (f"offset-{number}",), lambda of: (f"offset-{of}",))


def kill_decided(play: Play, query_id: str, root: Path) -> None:
    """Let a query with one sink die when its batch 1 is decided, but not visible."""
    driver = start(root / query_id, [play.sink])
    driver.process(batch(query_id, 0), fed([play], [["0"]]))
    with pytest.raises(InjectedFault), at("driver.decided", die):
        driver.process(batch(query_id, 1), fed([play], [["1"]]))
    play.forget_worker()


def test_a_new_sink_whose_ledger_sorts_first_does_not_hide_the_decisions(
    pair: tuple[Play, Play], tmp_path: Path
) -> None:
    """Seen: the start looked only into the new sink's empty ledger, and its sweep aborted the decided batch."""
    kill_decided(pair[1], "old", tmp_path)
    driver = start(tmp_path / "new", [play.sink for play in pair], "old")
    driver.process(batch("new", 0), fed(pair, [["new"]]))
    assert pair[1].visible() == {"0": 1, "1": 1, "new": 1}
    assert pair[0].visible() == {"new": 1}
    assert pair[0].decisions() == []  # they stay in the ledger of the query that has ended


@pytest.mark.parametrize("point", ["driver.acquired", "driver.deciding", "driver.recovered"])
def test_a_query_that_replaces_two_queries_completes_the_last_batches_of_both(
    point: str, pair: tuple[Play, Play], tmp_path: Path
) -> None:
    """Its first start dies: before it has completed a batch, before the second ledger says so, or after that."""
    for play, query_id in zip(pair, ("one", "two"), strict=True):
        kill_decided(play, query_id, tmp_path)
    sinks = [play.sink for play in pair]
    first = start(tmp_path / "new", sinks, "one", "two")
    with pytest.raises(InjectedFault), at(point, die):
        first.process(batch("new", 0), fed(pair, [["never"]]))
    if point == "driver.acquired":  # an operator must not take the decided transactions for undecided ones
        with closing(Cluster(pair[1].sink)) as cluster:
            assert cluster.ledgers().is_own
    start(tmp_path / "new", sinks, "two", "one").process(batch("new", 0), fed(pair, [["new"]]))
    assert pair[0].visible() == pair[1].visible() == {"0": 1, "1": 1, "new": 1}
    start(tmp_path / "new", sinks).process(batch("new", 1), fed(pair, [["next"]]))
    assert pair[0].visible() == pair[1].visible() == {"0": 1, "1": 1, "new": 1, "next": 1}
    assert not any(play.open_transactions() for play in pair)


def test_the_proof_of_an_older_decision_does_not_end_a_newer_one(pair: tuple[Play, Play], tmp_path: Path) -> None:
    """Two queries used a sink one after the other, and only markers prove the older decision. The newer one hides them.

    Seen: the proof aborted the newer decision's transactions.
    """
    shared = pair[1]
    older = start(tmp_path / "older", [play.sink for play in pair])
    older.process(batch("older", 0), fed(pair, [["0"]]))
    newer = start(tmp_path / "newer", [shared.sink], "older")
    newer.process(batch("newer", 0), fed([shared], [["1"]]))
    with pytest.raises(InjectedFault), at("driver.decided", die):
        newer.process(batch("newer", 1), fed([shared], [["2"]]))
    shared.forget_worker()
    for play in pair:
        for handle in play.handles(pair[0].decisions()[-1].tasks):
            play.fence(handle.transactional_id)
            assert play.end(handle, commit=True) not in {"NONE", NO_ANSWER}
    sinks = [play.sink for play in pair]
    with pytest.raises(CommitBlockedError):
        start(tmp_path / "new", sinks, "older", "newer").process(batch("new", 0), fed(pair, [["new"]]))
    start(tmp_path / "new", sinks, "older", "newer").process(batch("new", 0), fed(pair, [["new"]]))
    assert pair[0].visible() == {"0": 1, "new": 1}
    assert shared.visible() == {"0": 1, "1": 1, "2": 1, "new": 1}


def test_an_added_sink_completes_the_batch_that_an_ended_query_decided_in_its_ledger(
    pair: tuple[Play, Play], tmp_path: Path
) -> None:
    kill_decided(pair[1], "old", tmp_path)
    start(tmp_path / "new", [pair[0].sink]).process(batch("new", 0), fed([pair[0]], [["0"]]))
    sinks = [play.sink for play in pair]
    driver = start(tmp_path / "new", sinks, "old", add_sink=pair[1].name)
    driver.process(batch("new", 1), fed(pair, [["new"]]))
    assert pair[0].visible() == {"0": 1, "new": 1}
    assert pair[1].visible() == {"0": 1, "1": 1, "new": 1}
