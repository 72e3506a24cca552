"""The sinks that decide a migrated query's batches: its own, and perhaps a dead-letter sink that is not an argument."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from twopc.binding import Binding
from twopc.bound import FORMAT, Bound
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, DecisionLogDamagedError
from twopc.files import LocalFiles
from twopc.integration.migrate import deciding
from twopc.log_view import LogView
from twopc.records import Acquired, Begin
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

QUERY: Final = "query"
ORDERS: Final = KafkaSink(name="orders", bootstrap_servers="127.0.0.1:1", topic="enriched")
BAD: Final = KafkaSink(name="bad", bootstrap_servers="127.0.0.1:1", topic="bad-rows")
HERE: Final = {"cluster": "here", "ledger_id": "id"}
ACQUIRED: Final = Acquired(query_id=QUERY, run="r", deciding_log=BAD.ledger, driver="d", at_ms=0)
DECIDED: Final = LogView(begin=Begin(query_id=QUERY, first_batch=8, prior_offsets=()), acquired=ACQUIRED)


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> dict[str, LogView]:
    """What each ledger contains. The sink's own ledger names the log with the decisions, which reach batch 7."""
    found = {ORDERS.ledger: LogView(acquired=ACQUIRED), BAD.ledger: DECIDED}
    monkeypatch.setattr(deciding, "_view_of", lambda sink: found[sink.ledger])
    return found


def bound_to(root: Path, **sinks: dict[str, str]) -> LocalFiles:
    files = LocalFiles(root)
    Binding(files).bind(Bound(format=FORMAT, log=BAD.ledger, log_identity="id", sinks=sinks), 0)
    return files


def test_a_dead_letter_sinks_ledger_may_contain_the_decisions(views: dict[str, LogView]) -> None:
    assert deciding.decided_by(QUERY, ORDERS, (ORDERS, BAD)) == 7
    views[ORDERS.ledger] = LogView(acquired=of_query("another"))
    assert deciding.decided_by(QUERY, ORDERS, (ORDERS, BAD)) is None, "another query's sinks should not matter"
    views[ORDERS.ledger] = replace(DECIDED, acquired=None)
    assert deciding.decided_by(QUERY, ORDERS, (ORDERS, BAD)) == 7


def of_query(query_id: str) -> Acquired:
    return Acquired(query_id=query_id, run="r", deciding_log=BAD.ledger, driver="d", at_ms=0)


def test_a_ledger_of_the_same_name_on_another_cluster_does_not_contain_the_decisions(
    views: dict[str, LogView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger on this cluster has its own decisions, of another driver."""
    there = replace(BAD, bootstrap_servers="127.0.0.1:2", ledger_topic=ORDERS.ledger)
    monkeypatch.setattr("twopc.integration.verify.deciding.cluster_of", lambda sink: sink.bootstrap_servers)
    acquired = msgspec.structs.replace(ACQUIRED, deciding_log=ORDERS.ledger, deciding_cluster=there.bootstrap_servers)
    read = []

    def view_of(sink: KafkaSink) -> LogView:
        read.append(sink)
        return LogView(acquired=acquired) if sink is ORDERS else views[BAD.ledger]

    monkeypatch.setattr(deciding, "_view_of", view_of)
    assert deciding.decided_by(QUERY, ORDERS, (ORDERS, there)) == 7
    assert read == [ORDERS, there]


@pytest.mark.usefixtures("views")
def test_decisions_in_a_removed_sinks_ledger_are_not_mistaken_for_missing_decisions() -> None:
    with pytest.raises(ConfigurationError, match=r"stores its decisions in twopc-ledger-bad.* Pass that sink .* again"):
        deciding.decided_by(QUERY, ORDERS, (ORDERS,))


def test_a_damaged_log_is_not_mistaken_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "fold", lambda _: LogView(damage="torn"))
    monkeypatch.setattr(KafkaSink, "create_decision_log", lambda _: Unread())
    with pytest.raises(DecisionLogDamagedError, match="twopc-ledger-orders is damaged: torn"):
        deciding.decided_by(QUERY, ORDERS, (ORDERS,))


class Unread:
    """A log that has nothing to say."""

    def identity(self) -> str:
        """No topic."""
        return ABSENT

    def inspect(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@pytest.mark.usefixtures("views")
def test_a_rollback_fences_each_sink_of_the_checkpoint(tmp_path: Path) -> None:
    files = bound_to(
        tmp_path,
        orders={**HERE, "ledger": ORDERS.ledger},
        z={**HERE, "ledger": "z"},
        bad={**HERE, "ledger": BAD.ledger},
    )
    found, elsewhere = deciding.sinks_of(QUERY, ORDERS, files)
    assert not elsewhere
    assert {(sink.name, sink.ledger) for sink in found} == {
        ("orders", ORDERS.ledger),
        ("bad", BAD.ledger),
        ("z", "z"),
    }


@pytest.mark.usefixtures("views")
@pytest.mark.parametrize("facts", [{"cluster": "elsewhere", "ledger": "l"}, {"cluster": "here", "table": "t"}])
def test_a_sink_that_a_command_cannot_reach_is_named(facts: dict[str, str], tmp_path: Path) -> None:
    files = bound_to(
        tmp_path, orders={**HERE, "ledger": ORDERS.ledger}, bad={**HERE, "ledger": BAD.ledger}, other=facts
    )
    found = deciding.sinks_of(QUERY, ORDERS, files)
    assert ([sink.name for sink in found.here], found.elsewhere) == (["orders", "bad"], ["sink 'other'"])


@pytest.mark.parametrize("cluster", ["", "there"])
def test_a_deciding_sink_that_is_not_bound_yet_and_not_on_this_cluster_is_named(
    cluster: str, views: dict[str, LogView], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver was killed after it had acquired its sinks."""
    monkeypatch.setattr("twopc.integration.verify.deciding.cluster_of", lambda _: "here")
    monkeypatch.setattr(KafkaSink, "create_decision_log", lambda _: Unread())
    ledger = ORDERS.ledger if cluster else BAD.ledger
    acquired = msgspec.structs.replace(ACQUIRED, deciding_log=ledger, deciding_cluster=cluster)
    views[ORDERS.ledger] = LogView(acquired=acquired)
    found = deciding.sinks_of(QUERY, ORDERS, LocalFiles(tmp_path))
    assert (found.here, found.elsewhere) == ([ORDERS], [f"the sink whose ledger is {ledger}"])


@pytest.mark.usefixtures("views")
def test_a_rollback_for_a_sink_of_another_query_is_refused(tmp_path: Path) -> None:
    files = bound_to(tmp_path, bad={**HERE, "ledger": BAD.ledger})
    with pytest.raises(ConfigurationError, match=r"the query writes to bad, but not to sink 'orders'.*Check --sink"):
        deciding.sinks_of(QUERY, ORDERS, files)
