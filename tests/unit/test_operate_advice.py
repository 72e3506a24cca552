"""The meaning of a sink's state, and the acts that an operator may take. These tests need no server."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.operate_support import STATE, one
from twopc.attempt import Evidence
from twopc.integration.operate import acts
from twopc.integration.operate import resolve as resolve_module
from twopc.integration.operate.acts import (
    ForbiddenError,
    chosen,
    require_abortable,
    require_committable,
    require_decisions_read,
)
from twopc.integration.operate.advice import advise
from twopc.integration.operate.checkpoint import CheckpointState
from twopc.integration.operate.finding import RUNBOOK, Urgency
from twopc.integration.operate.held import HeldPartition
from twopc.integration.operate.observe import Proof
from twopc.integration.operate.opened import OpenTransaction, Standing, lowest_judged, opened
from twopc.integration.verify.history import BatchId, History
from twopc.integration.verify.transactions import Decided
from twopc.log_view import LogView
from twopc.records import Acquired, Begin
from twopc.recovery import Step
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.reports import NO_ANSWER, NOT_AUTHORIZED, Description

NOW_MS = 1_000_000.0
SINK = KafkaSink(name="s", bootstrap_servers="localhost:1")
HANDLE = KafkaHandle("u", "s.2.w.0", 7, 0, 3, 5, ("out:0",))


def description(
    state: str = "Ongoing", *, epoch: int = 0, started_ms: int = 990_000, ledger: str = SINK.ledger
) -> Description:
    where = frozenset({"out:0", f"{ledger}:3"})
    return Description("NONE", state, 7, epoch, where, started_ms=started_ms, timeout_ms=60_000)


def judged(tid: str, found: Description, *decided: Decided, is_known: bool = True) -> tuple[OpenTransaction, ...]:
    return opened(SINK, {tid: found}, decided if is_known else None, driver_epoch=2, now_ms=NOW_MS)


def decision(*, abandoned: bool = False) -> Decided:
    return Decided(BatchId("q", 4), 1, HANDLE, 0, abandoned)


@pytest.mark.parametrize(
    ("tid", "found", "decided", "standing"),
    [
        ("s.2.w.0", description(), [decision()], Standing.DECIDED),
        ("s.2.w.0", description(), [decision(abandoned=True)], Standing.ABANDONED),
        ("s.2.w.0", description(epoch=1), [decision()], Standing.RUNNING),  # a later transaction of the same id
        ("s.2.w.1", description(), [decision()], Standing.RUNNING),
        ("s.1.w.0", description(), [decision()], Standing.ORPHAN),
        ("s.1.w.0", description(ledger="ledgers.s"), [], Standing.UNMARKED),
        ("s.3.w.0", description(ledger="ledgers.s"), [], Standing.UNMARKED),  # no driver of this ledger has this epoch
        ("s.2.w.1", description(ledger="ledgers.s"), [], Standing.RUNNING),  # the task may still be writing
        ("s.driver", description(), [], Standing.DRIVER),
        ("s.other", description(), [], Standing.FOREIGN),  # an id of no task
    ],
)
def test_an_open_transaction_is_judged_by_the_decision_record_that_contains_it(
    tid: str, found: Description, decided: list[Decided], standing: Standing
) -> None:
    [judgement] = judged(tid, found, *decided)
    assert judgement.standing is standing
    assert (judgement.age_s, judgement.expires_in_s) == (10.0, 50.0)


@pytest.mark.parametrize(("epoch", "standing"), [(0, Standing.UNMARKED), (1, Standing.ORPHAN)])
def test_a_take_over_that_has_not_finished_does_not_make_its_predecessors_transactions_orphans(
    epoch: int, standing: Standing
) -> None:
    """Seen: an operator was told to abort transactions that the predecessor had decided in another sink's ledger."""
    former = Acquired(query_id="old", run="1", deciding_log="ledger of b", driver="", at_ms=0)
    newest = Acquired(query_id="new", run="2", deciding_log="ledger of a", driver="", at_ms=0)
    history = History(LogView(), {}, {0: former, 1: newest, 2: newest}, is_complete=True)
    judged_from = lowest_judged(history, "s")
    found = {f"s.{epoch}.w.0": description()}
    [judgement] = opened(SINK, found, [], driver_epoch=2, now_ms=NOW_MS, judged_from=judged_from)
    assert judgement.standing is standing
    # A query that already exists has begun earlier. Its first decision with the sink shows that the take-over is complete.
    has_begun = LogView(begin=Begin(query_id="new", first_batch=0, prior_offsets=()), kept=((5, {"other": {}}),))
    assert lowest_judged(replace(history, view=has_begun), "s") == 1
    has_decided = replace(has_begun, kept=((6, {"other": {}, "s": {}}),))
    assert lowest_judged(replace(history, view=has_decided), "s") == -1


def test_without_a_decision_log_no_transaction_is_judged() -> None:
    [judgement] = judged("s.1.w.0", description(), is_known=False)
    assert judgement.standing is Standing.UNJUDGED
    [foreign] = judged("s.other", description(), is_known=False)
    assert foreign.standing is Standing.FOREIGN and "another program" in foreign.evidence


def test_a_transaction_that_has_ended_is_not_open() -> None:
    assert judged("s.1.w.0", description("CompleteAbort")) == ()
    assert judged("s.driver", Description("TransactionalIdNotFoundError")) == ()


def test_a_decided_transaction_is_shown_with_its_rows_and_its_batch() -> None:
    [judgement] = judged("s.2.w.0", description(), decision())
    assert (judgement.batch, judgement.task, judgement.rows) == (4, 1, 5)
    assert "batch 4" in judgement.evidence


@pytest.mark.parametrize("standing", sorted(set(Standing) - {Standing.DECIDED}, key=str))
@pytest.mark.parametrize("is_forced", [False, True])
def test_an_undecided_transaction_is_never_committed(standing: Standing, *, is_forced: bool) -> None:
    with pytest.raises(ForbiddenError, match="must not be committed"):
        require_committable(STATE, [one(standing)], is_forced=is_forced)


def test_a_decided_transaction_may_be_committed_and_a_late_one_only_with_force() -> None:
    require_committable(STATE, [one(Standing.DECIDED)], is_forced=False)
    late = one(Standing.DECIDED, batch=3)
    with pytest.raises(ForbiddenError, match="--force"):
        require_committable(STATE, [late], is_forced=False)
    require_committable(STATE, [late], is_forced=True)


@pytest.mark.parametrize("standing", [Standing.DECIDED, Standing.DRIVER])
@pytest.mark.parametrize("is_forced", [False, True])
def test_a_decided_transaction_is_never_aborted(standing: Standing, *, is_forced: bool) -> None:
    with pytest.raises(ForbiddenError, match="--force cannot override this"):
        require_abortable([one(standing)], is_forced=is_forced)


@pytest.mark.parametrize("standing", [Standing.RUNNING, Standing.UNMARKED, Standing.UNJUDGED, Standing.FOREIGN])
def test_a_transaction_that_may_still_be_decided_is_aborted_only_with_force(standing: Standing) -> None:
    with pytest.raises(ForbiddenError, match="add --force --reason"):
        require_abortable([one(standing)], is_forced=False)
    require_abortable([one(standing)], is_forced=True)


def test_force_is_not_enough_if_the_decisions_are_missing() -> None:
    blind = replace(STATE, problem="the topic does not exist")
    with pytest.raises(ForbiddenError, match=r"its rows are lost.*add --without-decisions"):
        require_decisions_read(blind, [one(Standing.UNJUDGED)], is_blind=False)
    require_decisions_read(blind, [one(Standing.UNJUDGED)], is_blind=True)
    require_decisions_read(STATE, [one(Standing.RUNNING)], is_blind=False)


def test_force_is_not_enough_for_a_transaction_that_may_be_decided_in_another_ledger() -> None:
    with pytest.raises(
        ForbiddenError, match=r"missing from twopc-ledger-s\. .*--ledger-topic.*add --without-decisions"
    ):
        require_decisions_read(STATE, [one(Standing.UNMARKED)], is_blind=False)
    require_decisions_read(STATE, [one(Standing.UNMARKED)], is_blind=True)


def test_the_printed_commands_name_the_ledger_if_it_is_not_the_default() -> None:
    [default] = advise(replace(STATE, transactions=(one(Standing.DECIDED),)))
    assert "`twopc transactions commit s`" in default.action
    [named] = advise(replace(STATE, transactions=(one(Standing.DECIDED),), ledger="ledgers.s"))
    assert "`twopc transactions commit s --ledger-topic ledgers.s`" in named.action


def test_orphans_may_be_aborted() -> None:
    require_abortable([one(Standing.ORPHAN), one(Standing.ABANDONED)], is_forced=False)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (NO_ANSWER, "not aborted: no broker responded."),
        (NOT_AUTHORIZED, "not aborted: not authorized. Allow Write on"),
        ("NotCoordinatorError", "not aborted: the coordinator returned NotCoordinatorError."),
    ],
)
def test_the_error_for_a_failed_abort_gives_the_reason(
    monkeypatch: pytest.MonkeyPatch, report: str, expected: str
) -> None:
    orphan = one(Standing.ORPHAN)
    monkeypatch.setattr(acts, "TransactionClient", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(acts, "fence", lambda *_, **__: {orphan.transactional_id: report})
    [ended] = acts.abort(SINK, [orphan])
    assert not ended.is_done
    assert ended.text.startswith(expected)


def test_an_id_without_an_open_transaction_is_reported() -> None:
    with pytest.raises(ForbiddenError, match=r"has no open transaction s\.9"):
        chosen(STATE, ["s.9"], {Standing.ORPHAN})


def test_an_id_that_a_broker_may_not_have_listed_is_not_called_misspelled() -> None:
    with pytest.raises(ForbiddenError, match=r"unknown whether s\.9 is open"):
        chosen(replace(STATE, is_complete=False), ["s.9"], {Standing.ORPHAN})


def test_a_transaction_whose_commit_is_in_progress_does_not_expire() -> None:
    [judgement] = judged("s.2.w.0", description("PrepareCommit"), decision())
    assert (judgement.age_s, judgement.expires_in_s) == (10.0, None)
    [found] = advise(replace(STATE, transactions=(judgement,)))
    assert "already ending" in found.what


@pytest.mark.parametrize(
    ("started_ms", "age_s"),
    [(NOW_MS + 60_000, None), (NOW_MS + 200, 0.0), (NOW_MS - 70_000, 70.0), (NOW_MS - 700_000, None)],
    ids=["begins in the future", "begins now", "is being aborted", "would have expired"],
)
def test_an_age_that_only_differing_clocks_can_explain_is_unknown(started_ms: int, age_s: float | None) -> None:
    """The coordinator says when the transaction began, and the operator's machine says what time it is."""
    [judgement] = judged("s.2.w.0", description(started_ms=started_ms))
    assert judgement.age_s == age_s
    assert judgement.expires_in_s == (None if age_s is None else 60.0 - age_s)
    if age_s is None:
        [found] = advise(replace(STATE, transactions=(judgement,)))
        assert "clocks differ" in found.what and found.anchor == "a-batch-is-being-written"


def test_a_transaction_that_is_being_aborted_does_not_make_a_batch_late() -> None:
    """An attempt of the running driver has failed, and the driver has swept it."""
    [judgement] = judged("s.2.w.0", description("PrepareAbort"))
    assert (judgement.standing, judgement.expires_in_s) == (Standing.RUNNING, None)
    [found] = advise(replace(STATE, transactions=(judgement,)))
    assert (found.urgency, found.anchor) == (Urgency.WATCH, "a-batch-is-being-written")


def advised(**changes: Any) -> list[tuple[Urgency, str]]:
    return [(found.urgency, found.anchor) for found in advise(replace(STATE, **changes))]


def proof(evidence: Evidence, **changes: Any) -> Proof:
    found = Proof(batch=4, task=0, transaction="s.2.w.0 (u)", rows=5, evidence=evidence, text="because")
    return replace(found, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (Urgency.NONE, "healthy")),
        ({"problem": "the topic does not exist"}, (Urgency.ACT, "the-ledger-is-lost-or-damaged")),
        (
            {"problem": "they are elsewhere", "is_elsewhere": True},
            (Urgency.WATCH, "the-decisions-are-on-another-cluster"),
        ),
        (
            {"problem": "they are elsewhere", "is_elsewhere": True, "transactions": (one(Standing.UNJUDGED),)},
            (Urgency.ACT, "the-decisions-are-on-another-cluster"),
        ),
        ({"transactions": (one(Standing.DECIDED),)}, (Urgency.ACT, "decided-and-not-committed")),
        ({"transactions": (one(Standing.ORPHAN),)}, (Urgency.WATCH, "orphans-hold-readers-back")),
        ({"transactions": (one(Standing.RUNNING),)}, (Urgency.WATCH, "a-batch-is-being-written")),
        (
            {"transactions": (one(Standing.RUNNING, age_s=50.0, expires_in_s=10.0),)},
            (Urgency.ACT, "transactions-expire-before-the-decision"),
        ),
        ({"transactions": (one(Standing.UNMARKED),)}, (Urgency.WATCH, "the-sink-has-another-ledger")),
        ({"transactions": (one(Standing.FOREIGN),)}, (Urgency.WATCH, "a-foreign-transaction-holds-readers-back")),
        ({"proofs": (proof(Evidence.ABORTED),)}, (Urgency.ACT, "a-decided-transaction-is-lost")),
        ({"proofs": (proof(Evidence.UNKNOWN),)}, (Urgency.WATCH, "a-commit-cannot-be-proven")),
        ({"proofs": (proof(Evidence.UNKNOWN, is_described=False),)}, (Urgency.ACT, "a-commit-cannot-be-proven")),
        (  # a later batch was decided, so the query had proven this commit
            {"proofs": (proof(Evidence.UNKNOWN, batch=3, is_described=False),)},
            (Urgency.WATCH, "a-commit-cannot-be-proven"),
        ),
        ({"proofs": (proof(Evidence.COMMITTED, is_described=False),)}, (Urgency.NONE, "healthy")),
        ({"is_complete": False}, (Urgency.WATCH, "a-broker-does-not-respond")),
        (
            {"held": (HeldPartition("out", 0, 5, 9, 8, "other"),)},
            (Urgency.WATCH, "a-foreign-transaction-holds-readers-back"),
        ),
    ],
)
def test_each_state_has_its_advice(changes: dict[str, Any], expected: tuple[Urgency, str]) -> None:
    assert advised(**changes) == [expected]


def test_a_silent_coordinator_may_let_decided_transactions_expire() -> None:
    unproven = (proof(Evidence.UNKNOWN), proof(Evidence.UNKNOWN, is_described=False, text="its coordinator is silent"))
    [found] = advise(replace(STATE, proofs=unproven))
    assert "1 decided transaction of batch 4" in found.what and "its coordinator is silent" in found.what
    assert "may still be open" in found.what and "start it now" in found.action


def test_the_advice_says_when_the_first_transaction_expires() -> None:
    [found] = advise(replace(STATE, transactions=(one(Standing.DECIDED), one(Standing.DECIDED, expires_in_s=12.0))))
    assert "2 of its transactions" in found.what and "the first expires in 12 s" in found.what


@pytest.mark.parametrize(
    ("query_id", "planned", "finished", "what"),
    [
        ("q", 4, 4, None),
        ("q", 5, 4, None),
        ("q", 3, 3, "older copy"),
        ("q", 5, 5, "ran without the sink"),
        ("other", 4, 4, "the checkpoint belongs to query other"),
    ],
)
def test_a_checkpoint_that_does_not_match_the_sink_is_reported(
    query_id: str, planned: int, finished: int, what: str | None
) -> None:
    checkpoint = CheckpointState(location="c", query_id=query_id, planned=planned, finished=finished, log="l", sinks={})
    [found] = advise(STATE, checkpoint)
    if what is None:
        assert found.anchor == "healthy"
    else:
        assert what in found.what and found.anchor == "the-start-is-refused"


def test_the_checkpoint_of_an_ended_query_gets_no_advice_to_end_its_successor() -> None:
    checkpoint = CheckpointState(location="c", query_id="former", planned=4, finished=4, log="l", sinks={})
    history = History(LogView(ended=frozenset({"former"})), {}, {}, is_complete=True)
    [found] = advise(replace(STATE, history=history), checkpoint)
    assert found.anchor == "the-start-is-refused" and "EndQuery" not in found.action
    [other] = advise(replace(STATE, history=history), replace(checkpoint, query_id="other"))
    assert "override=EndQuery('q')" in other.action


def test_every_recovery_step_that_may_need_a_person_has_its_advice() -> None:
    assert set(resolve_module._NEXT) == set(Step) - {Step.ABANDON, Step.REFUSE, Step.DAMAGED}


def test_every_link_to_the_runbook_leads_to_an_entry() -> None:
    root = Path(__file__).parents[2]
    named = set()
    for module in (root / "integration" / "operate").glob("*.py"):
        named |= set(
            re.findall(r'"((?:an?|the|healthy|decided|orphans|transactions)(?:-[a-z]+)*)"', module.read_text())
        )
    runbook = (root / RUNBOOK).read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
        for line in runbook.splitlines()
        if line.startswith(("## ", "### "))
    }
    assert {name for name in named if "-" in name} - anchors == set()
