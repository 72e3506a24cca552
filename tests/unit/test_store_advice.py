"""What the state of a sink's store means compared with the decisions: every row of the comparison. These tests need no server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from twopc.attempt import Evidence
from twopc.control import Control
from twopc.integration.operate.checkpoint import CheckpointState
from twopc.integration.operate.finding import Urgency
from twopc.integration.operate.store_advice import advise_store, not_examined
from twopc.integration.operate.store_state import StoreState
from twopc.observation import Observation


@dataclass(frozen=True)
class Named:
    transaction: str


ONE, OTHER = Named("one"), Named("other")
RECORD = Control(id="i", run="r", query_id="q", driver_epoch=3, version=9, decided=9)
SEEN = Observation(record=RECORD, bound={"id": "i", "table": "7"}, evidence={ONE: Evidence.COMMITTED})
STATE = StoreState(sink="s", kind="PostgresSink", bound={"id": "i", "table": "7"}, batch=4, seen=SEEN)
SINKS = {"s": {"id": "i", "table": "7"}}
CHECKPOINT = CheckpointState(location="c", query_id="q", planned=4, finished=4, log="registers", sinks=SINKS)
UNBOUND = replace(CHECKPOINT, log=None, sinks={})
EMPTY = Observation(record=Control(), bound={"id": ""})
WAITING = {ONE: Evidence.COMMITTED, OTHER: Evidence.UNKNOWN}
LOST = {ONE: Evidence.UNKNOWN, OTHER: Evidence.ABORTED}
OF_ANOTHER = msgspec.structs.replace(RECORD, query_id="other")

HEALTHY = (Urgency.NONE, "healthy")
REFUSED = (Urgency.ACT, "the-start-is-refused")
GONE = (Urgency.ACT, "the-control-record-is-missing-or-unreadable")
DIFFERS = (Urgency.ACT, "the-rows-of-a-batch-differ")
UNKNOWN = (Urgency.WATCH, "the-stores-of-sinks")


def seen(**changes: Any) -> StoreState:
    return replace(STATE, seen=replace(SEEN, **changes))


def unseen(**changes: Any) -> StoreState:
    return replace(STATE, seen=None, **changes)


@pytest.mark.parametrize(
    ("state", "expected", "words"),
    [
        (STATE, HEALTHY, "batch 4 is decided and published"),
        (seen(evidence={}), HEALTHY, "batch 4 is decided and published"),  # the batch had no rows for this sink
        (replace(seen(evidence={}), batch=None), HEALTHY, "no batch is decided yet"),
        (
            replace(seen(evidence={}), batch=None, abandoned=4),
            HEALTHY,
            "batch 4 was abandoned, and no later batch is decided yet",
        ),
        (replace(seen(is_ahead=True), batch=None, abandoned=4), REFUSED, "log ends with batch 4, but the store"),
        (
            seen(evidence=WAITING),
            (Urgency.WATCH, "decided-and-not-published"),
            "1 of its transactions is not published",
        ),
        (
            seen(evidence=LOST),
            (Urgency.ACT, "a-decided-transaction-is-lost"),
            "1 transaction of batch 4 was decided and then lost",
        ),
        (seen(leftovers=("a", "b")), (Urgency.WATCH, "a-batch-is-being-written"), "2 transactions are staged"),
        (
            seen(rolled_back="version 3 was restored"),
            (Urgency.ACT, "the-table-was-rolled-back"),
            "version 3 was restored",
        ),
        (
            replace(seen(rows={9: 90}, complete=frozenset({9})), decided={9: (4, 100)}),
            DIFFERS,
            "batch 4: 100 rows decided, 90 in the table's history",
        ),
        (replace(seen(rows={9: 110}), decided={9: (4, 100)}), DIFFERS, "100 rows decided, 110 in the table's history"),
        (replace(seen(rows={9: 100}), decided={9: (4, 100)}), HEALTHY, "published"),
        (replace(seen(rows={8: 90}), decided={9: (4, 100)}), HEALTHY, "published"),  # the batch's snapshot has expired
        (seen(is_ahead=True), REFUSED, "older copy"),
        (seen(is_behind=True), REFUSED, "are missing from the store"),
        (seen(is_behind=True, record=OF_ANOTHER), REFUSED, "are missing from the store"),
        (seen(bound={"id": "i", "table": "8"}), REFUSED, "bound to table 7, but the store now shows table 8"),
        (seen(bound={"id": "j"}), REFUSED, "bound to id i, but the store now shows id j"),
        (
            seen(bound={"name": "s"}),
            REFUSED,
            "bound to id i, name (none), table 7, but the store now shows id (none), name s",
        ),
        (seen(record=OF_ANOTHER), REFUSED, "belongs to query q, but the sink belongs to query other"),
        (
            replace(seen(record=OF_ANOTHER), is_replaced=True),
            REFUSED,
            "belongs to query q, which ended when another query replaced it; the sink belongs to query other",
        ),
        (replace(STATE, seen=EMPTY), GONE, "the store has no control record"),
        (unseen(problem="the tag is missing"), GONE, "the tag is missing"),
        (unseen(problem="timed out", answers=False), (Urgency.ACT, "a-store-does-not-respond"), "timed out"),
        (unseen(), UNKNOWN, "because PostgresSink does not report its store's state"),
        (replace(STATE, is_known=False), UNKNOWN, "could not be read"),
        (replace(STATE, bound=None), UNKNOWN, "not bound to this sink"),
    ],
)
def test_each_state_has_its_advice(state: StoreState, expected: tuple[Urgency, str], words: str) -> None:
    [advice] = advise_store(state, CHECKPOINT)
    assert (advice.urgency, advice.anchor) == expected
    assert words in advice.what


def test_a_fact_that_a_new_version_of_the_sink_adds_is_not_a_change() -> None:
    [advice] = advise_store(seen(bound={**STATE.bound, "rack": "1"}), CHECKPOINT)  # type: ignore[dict-item]
    assert (advice.urgency, advice.anchor) == HEALTHY


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (replace(STATE, bound=None, batch=None, seen=EMPTY), HEALTHY),
        (replace(seen(evidence={}), bound=None, batch=None), HEALTHY),  # a driver has acquired the sink, and died
        (replace(seen(is_ahead=True), bound=None, batch=None), REFUSED),
        (replace(seen(record=OF_ANOTHER), bound=None, batch=None), REFUSED),
    ],
)
def test_a_checkpoint_without_a_decision_is_compared_too(state: StoreState, expected: tuple[Urgency, str]) -> None:
    [advice] = advise_store(state, UNBOUND)
    assert (advice.urgency, advice.anchor) == expected


@pytest.mark.parametrize(
    "worse",
    [
        {"record": OF_ANOTHER},
        {"bound": {"id": "j"}},
        {"is_ahead": True},
        {"is_behind": True},
    ],
)
def test_a_store_that_does_not_match_the_checkpoint_says_nothing_about_the_batch(worse: dict[str, Any]) -> None:
    """The transactions of another history always look lost."""
    [advice] = advise_store(seen(evidence=LOST, leftovers=("a",), **worse), CHECKPOINT)
    assert advice.anchor == "the-start-is-refused"


def test_the_rows_of_an_incomplete_batch_are_not_counted() -> None:
    for evidence, anchor in ((WAITING, "decided-and-not-published"), (LOST, "a-decided-transaction-is-lost")):
        found = seen(evidence=evidence, rows={9: 90}, complete=frozenset({9}))
        [advice] = advise_store(replace(found, decided={9: (4, 100)}), CHECKPOINT)
        assert advice.anchor == anchor


def test_too_few_rows_differ_only_if_no_commit_of_the_decision_can_be_missing() -> None:
    """A repaired batch has two commits, of which maintenance may have expired the older one."""
    fewer = seen(rows={8: 1, 9: 90}, complete=frozenset({8}))
    assert replace(fewer, decided={9: (4, 100)}).differing == []
    assert replace(fewer, decided={8: (3, 2)}).differing == ["batch 3: 2 rows decided, 1 in the table's history"]


def test_a_batch_that_waits_while_others_are_staged_has_two_findings() -> None:
    found = advise_store(seen(evidence=WAITING, leftovers=("a",)), CHECKPOINT)
    assert [one.anchor for one in found] == ["decided-and-not-published", "a-batch-is-being-written"]


@pytest.mark.parametrize(
    ("state", "published"),
    [
        (STATE, 4),
        (seen(evidence=WAITING), 3),
        (seen(evidence=LOST), 3),
        (replace(seen(evidence=WAITING), first_batch=4), None),
        (replace(STATE, batch=None), None),
        (seen(is_ahead=True), None),
        (seen(is_behind=True), None),
        (seen(bound={"id": "i", "table": "8"}), None),  # another store
        (replace(STATE, seen=EMPTY), None),
        (unseen(), None),
    ],
)
def test_the_store_state_shows_the_newest_published_batch(state: StoreState, published: int | None) -> None:
    assert state.published == published
    assert state.facts()["last_published"] == published


def test_the_number_of_leftovers_is_unknown_without_the_decisions() -> None:
    state = seen(leftovers=("a",))
    assert state.facts()["leftovers"] == ["a"]
    assert replace(state, is_known=False).facts()["leftovers"] is None


def test_sinks_other_than_kafka_sinks_are_listed_if_they_were_not_given() -> None:
    bound = replace(CHECKPOINT, sinks={"k": {"ledger": "l"}, **SINKS, "t": {"id": "j"}})
    found = not_examined(bound, frozenset())
    assert found is not None and found.what.endswith("the stores of these sinks: s, t")
    found = not_examined(bound, frozenset({"t"}))
    assert found is not None and found.what.endswith("the store of this sink: s")
    assert not_examined(bound, frozenset({"s", "t"})) is None
