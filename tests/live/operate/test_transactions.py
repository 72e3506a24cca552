"""``twopc transactions`` and ``twopc resolve`` on a real broker: they follow the decision record, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.broker_changes import delete_topic
from tests.live.operate.support import ask, spark_files
from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, abort_in_one_partition, at, crash, die
from tests.operator_acts import acts_in
from twopc.integration.operate import acts
from twopc.integration.operate.observe import observe
from twopc.integration.operate.opened import OpenTransaction, Standing
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from pathlib import Path

BOTH = VISIBLE + VISIBLE


def standings(play: Play) -> list[Standing]:
    return [one.standing for one in observe(play.sink).transactions]


def require_next_batch(play: Play, batch: int, rows: Counter[str]) -> None:
    """Check that the query continues where it stopped, and that every row exists once."""
    play.forget_worker()
    driver = play.driver()
    driver.process(play.batch(batch), Tasks(play, ROWS))
    assert play.visible() == rows


def test_decided_transactions_are_listed_and_committed(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    listed = ask(play, "transactions", "list", play.name, "--json")
    assert listed.status == 1
    [sink] = listed.facts
    assert [one["decision"] for one in sink["transactions"]] == ["decided", "decided"]
    assert sorted(one["rows"] for one in sink["transactions"]) == [1, 2]
    assert all(one["batch"] == 0 and 0 <= one["age_s"] < one["expires_in_s"] for one in sink["transactions"])

    proven = ask(play, "transactions", "prove", play.name, "--json")
    assert proven.status == 1
    assert {one["evidence"] for one in proven.facts[0]["transactions"]} == {"unknown"}

    done = ask(play, "transactions", "commit", play.name, "--yes", "--json")
    assert done.status == 0 and len(done.facts["ended"]) == 2
    assert play.visible() == VISIBLE
    assert ask(play, "transactions", "prove", play.name).status == 0
    assert ask(play, "transactions", "list", play.name).status == 0
    require_next_batch(play, 1, BOTH)


def test_a_commit_reports_lost_transactions_that_were_decided(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    lost, other = play.decided(0)
    play.fence(lost.transactional_id)
    partly = ask(play, "transactions", "commit", play.name, "--yes", "--json")
    assert [one["transactional_id"] for one in partly.facts["ended"]] == [other.transactional_id]
    assert partly.status == 1
    [left] = partly.facts["left"]
    assert left["transaction"] == lost.transaction and left["evidence"] == "aborted"

    nothing = ask(play, "transactions", "commit", play.name, "--yes")
    assert nothing.status == 1
    assert lost.transaction in nothing.out and f"twopc resolve {play.name}" in nothing.out


def test_a_transaction_without_its_rows_is_not_committed(play: Play) -> None:
    """Fails if the command asks only the coordinator. The query would then find a committed batch without its rows."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    torn, _ = play.decided(0)
    abort_in_one_partition(play, torn)
    done = ask(play, "transactions", "commit", play.name, "--yes", "--json")
    assert done.status == 1
    said = {one["transactional_id"]: (one["is_done"], one["text"]) for one in done.facts["ended"]}
    assert [is_done for is_done, _ in said.values()].count(True) == 1
    is_done, text = said[torn.transactional_id]
    assert not is_done
    assert "no longer contains these rows" in text and "Start the query" in text
    require_next_batch(play, 0, VISIBLE)


def test_a_commit_does_not_harm_a_running_driver(play: Play) -> None:
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))

    def operator_commits() -> None:
        assert ask(play, "transactions", "commit", play.name, "--yes").status == 0

    with at("driver.decided", operator_commits):
        driver.process(play.batch(1), Tasks(play, ROWS))
    assert play.visible() == BOTH


@pytest.mark.parametrize("force", [(), ("--force", "--reason", "I want it")])
def test_a_decided_transaction_is_not_aborted(play: Play, force: tuple[str, ...]) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    tid = play.decided(0)[0].transactional_id
    refused = ask(play, "transactions", "abort", play.name, tid, "--yes", *force)
    assert refused.status == 3
    assert "must not be aborted: the decision for batch 0 names this transaction" in refused.error
    assert len(play.open_transactions()) == 2
    require_next_batch(play, 1, BOTH)


@pytest.mark.parametrize("force", [(), ("--force", "--reason", "I want it")])
def test_an_undecided_transaction_is_not_committed(play: Play, force: tuple[str, ...]) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.confirmed")
    tid = play.open_transactions()[0]
    refused = ask(play, "transactions", "commit", play.name, tid, "--yes", *force)
    assert refused.status == 3
    assert "must not be committed: no decision names this transaction" in refused.error
    assert play.visible() == Counter()


def test_a_command_asks_for_confirmation_before_it_acts(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    said = ask(play, "transactions", "commit", play.name, answer="n\n")
    assert (said.status, "nothing was done" in said.error) == (2, True)
    assert len(play.open_transactions()) == 2


def test_orphans_are_aborted_without_force(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.confirmed")
    play.forget_worker()
    with pytest.raises(InjectedFault), at("driver.acquired", die):  # before it sweeps
        play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert standings(play) == [Standing.ORPHAN, Standing.ORPHAN]
    assert ask(play, "transactions", "abort", play.name, "--yes").status == 0
    assert standings(play) == []
    require_next_batch(play, 0, VISIBLE)


def test_a_possibly_undecided_transaction_is_aborted_only_with_force_and_the_reason_is_kept(play: Play) -> None:
    driver = play.driver()
    crash(driver, play, 0, ROWS, "driver.confirmed")
    checkpoint = spark_files(play, finished=-1, planned=0)
    words = ("transactions", "abort", play.name, *play.open_transactions(), "--yes", "--checkpoint", str(checkpoint))
    refused = ask(play, *words)
    assert refused.status == 3 and "add --force --reason TEXT" in refused.error
    assert ask(play, *words, "--force").status == 2
    assert not list((checkpoint / "twopc").glob("operator-*"))

    done = ask(play, *words, "--force", "--reason", "the host is gone", "--json")
    assert done.status == 0 and done.facts["reason_in"] == str(checkpoint / "twopc" / "operator-000001.json")
    [act] = acts_in(checkpoint / "twopc")
    assert (act.command, act.reason) == ("abort", "the host is gone")
    assert set(act.transactions.values()) == {"undecided"}
    assert standings(play) == []
    require_next_batch(play, 0, VISIBLE)


def test_an_abort_notices_that_the_driver_has_decided_in_the_meantime(play: Play) -> None:
    """Between the check and the action, an undecided transaction is decided. Only a fence before the action rules this out."""
    driver = play.driver()
    wanted: list[OpenTransaction] = []

    def look() -> None:
        wanted.extend(observe(play.sink).transactions)

    with at("driver.confirmed", look):
        crash(driver, play, 0, ROWS, "driver.decided")
    assert [one.standing for one in wanted] == [Standing.RUNNING, Standing.RUNNING]
    with pytest.raises(acts.ForbiddenError, match=r"the driver has since decided \S+, in batch 0"):
        acts.abort(play.sink, wanted)
    assert len(play.open_transactions()) == 2
    require_next_batch(play, 1, BOTH)


def test_without_a_ledger_no_transaction_is_judged_and_an_abort_needs_force(play: Play, tmp_path: Path) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.confirmed")
    delete_topic(play.bootstrap_servers, play.sink.ledger)
    listed = ask(play, "transactions", "list", play.name, "--json")
    assert {one["decision"] for one in listed.facts[0]["transactions"]} == {"unjudged"}
    unforced = ask(play, "transactions", "abort", play.name, "--yes")
    assert unforced.status == 1 and play.open_transactions()[0] in unforced.out
    assert ask(play, "transactions", "prove", play.name).status == 2
    assert ask(play, "transactions", "abort", play.name, play.open_transactions()[0], "--yes").status == 3
    forced = ("transactions", "abort", play.name, "--yes", "--force", "--reason", "the ledger is gone")
    blind = ask(play, *forced)
    assert blind.status == 3 and "its rows are lost" in blind.error and "--without-decisions" in blind.error
    assert len(play.open_transactions()) == 2
    done = ask(play, *forced, "--without-decisions")
    assert done.status == 0 and f"recorded in {tmp_path}/operator-000001.json" in done.out.replace("\n", "")
    assert play.open_transactions() == ()
    assert ask(play, "transactions", "list", play.name).status == 1  # the ledger is still lost


def test_resolve_settles_a_decided_batch_and_leaves_nothing_in_doubt(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    first = ask(play, "resolve", play.name)
    assert first.status == 1
    assert "1. State: " in first.out and "2 decided and open" in first.out and "transactions commit" in first.out
    done = ask(play, "resolve", play.name, "--yes", "--json")
    assert done.status == 0 and done.facts[0]["case"] == "decided, done"
    assert len(done.facts[0]["committed"]) == 2
    assert play.visible() == VISIBLE


def test_resolve_distinguishes_a_loss_repairable_by_a_replay_from_an_irreparable_one(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    lost, other = play.decided(0)
    play.fence(lost.transactional_id)
    assert play.end(other, commit=True) == "NONE"
    checkpoint = spark_files(play, finished=-1, planned=0)
    repaired = ask(play, "resolve", play.name, "--checkpoint", str(checkpoint), "--json")
    assert (repaired.status, repaired.facts[0]["case"]) == (1, "some lost")
    spark_files(play, finished=0)
    in_doubt = ask(play, "resolve", play.name, "--checkpoint", str(checkpoint), "--json")
    assert (in_doubt.status, in_doubt.facts[0]["case"]) == (1, "lost and left behind")
    assert f"override=Abandon(0, {play.query_id!r})" in in_doubt.facts[0]["next"]
    assert in_doubt.facts[0]["runbook"].endswith("#a-batch-is-in-doubt")
