"""Who holds readers back, if the brokers name the transaction, hide it, or do not respond."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.unit.operate_support import STATE, one
from twopc.integration.operate import held
from twopc.integration.operate.advice import advise
from twopc.integration.operate.finding import Urgency
from twopc.integration.operate.held import HeldPartition, Unnamed, held_back
from twopc.integration.operate.opened import Standing
from twopc.integration.verify.cluster import Bounds
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.partition_reports import NOT_ALLOWED, PartitionReport
from twopc.sinks.kafka.reports import NO_ANSWER, NONE, Description, Listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.integration.operate.observe import SinkState
    from twopc.integration.operate.opened import OpenTransaction
    from twopc.integration.verify.cluster import Cluster

SINK = KafkaSink(name="s", bootstrap_servers="localhost:1", topic="out")
STUCK, PASSED = Bounds({0: 0}, {0: 5}, {0: 9}), Bounds({0: 0}, {0: 9}, {0: 9})


def producers(*of: tuple[int, int], error: str = NONE) -> dict[str, PartitionReport]:
    return {"out:0": PartitionReport(error, {(producer, 0): start for producer, start in of})}


def look(
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, PartitionReport],
    *bounds: Bounds,
    listed: dict[str, Description] | None = None,
    known: dict[int, str] | None = None,
) -> HeldPartition:
    """Look at a partition whose readers stop at offset 5. ``bounds`` are the results of the second and later looks."""
    later = [STUCK, *(bounds or (STUCK,))]
    described = listed or {}

    def describe(ids: Sequence[str]) -> dict[str, Description]:
        return {tid: described[tid] for tid in ids}

    fake = SimpleNamespace(
        sink=SINK,
        ledger=SimpleNamespace(admin=None),
        bounds=lambda _: later.pop(0) if len(later) > 1 else later[0],
        transactions=SimpleNamespace(
            describe=describe, list_open=lambda *_, **__: Listing(tuple(described), complete=True)
        ),
    )
    topic = SimpleNamespace(partitions=[SimpleNamespace(id=0, leader=SimpleNamespace(id=1))])
    monkeypatch.setattr(held, "describe", lambda *_, **__: topic)
    monkeypatch.setattr(held, "BrokerConnection", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(held, "describe_partitions", lambda *_: answer)
    monkeypatch.setattr(held, "_END_S", 0.01)
    [found] = held_back(cast("Cluster", fake), {"out"}, known or {})
    return found


def _with(found: HeldPartition, *transactions: OpenTransaction) -> SinkState:
    return replace(STATE, held=(found,), transactions=transactions)


@pytest.mark.parametrize(
    ("answer", "why", "what"),
    [
        (producers((8, 5)), Unnamed.HIDDEN, "producer 8"),
        (producers(error=NOT_ALLOWED), Unnamed.REFUSED, "does not tell this principal"),
        (producers(error=NO_ANSWER), Unnamed.SILENT, "did not say"),
        ({}, Unnamed.SILENT, "did not say"),
    ],
)
def test_a_transaction_without_a_name_is_never_said_to_be_about_to_end(
    answer: dict[str, PartitionReport], why: Unnamed, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = look(monkeypatch, answer)
    assert found.unnamed is why and "end" not in found.holder.split()
    [advice] = advise(_with(found))
    assert (advice.urgency, advice.anchor) == (Urgency.WATCH, "a-foreign-transaction-holds-readers-back")
    assert what in advice.what and "kafka-transactions" not in advice.action
    assert found.facts()["unnamed"] == why.value


def test_a_missing_read_permission_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    [advice] = advise(_with(look(monkeypatch, producers(error=NOT_ALLOWED))))
    assert "Allow Read on the topic out" in advice.action


def test_a_transaction_that_ends_in_the_meantime_needs_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look(monkeypatch, producers((8, 5)), PASSED)
    assert (found.unnamed, found.holder) == (Unnamed.ENDED, "a transaction that has just ended")
    assert [advice.anchor for advice in advise(_with(found))] == ["healthy"]


def test_the_oldest_transaction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"other": Description("NONE", "Ongoing", 8, 0)}
    found = look(monkeypatch, producers((9, 7), (8, 5)), listed=listed)
    assert (found.transactional_id, found.holder, found.unnamed) == ("other", "other", None)


def test_a_transaction_of_the_sink_that_is_being_committed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker does not list it any more."""
    assert look(monkeypatch, producers((7, 5)), known={7: "s.2.w.0"}).holder == "s.2.w.0"


def test_a_leader_that_names_no_producer_causes_no_advice_if_the_sink_has_a_transaction_there() -> None:
    running = one(Standing.RUNNING, partitions=("out:0",))
    found = HeldPartition("out", 0, 5, 9, unnamed=Unnamed.SILENT)
    assert [advice.anchor for advice in advise(_with(found, running))] == ["a-batch-is-being-written"]


@pytest.mark.parametrize("tid", ["s.2.w.5", "s.driver"])
def test_a_transaction_of_the_sink_that_began_after_the_list_is_not_called_another_programs(tid: str) -> None:
    [advice] = advise(_with(HeldPartition("out", 0, 5, 9, 8, tid)))
    assert (advice.urgency, advice.anchor) == (Urgency.WATCH, "a-batch-is-being-written")
    assert tid in advice.what and "another" not in advice.what
