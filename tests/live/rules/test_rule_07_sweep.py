"""Rule 7: sweep by InitProducerId, never by EndTxn; only tasks' ids, and only of driver epochs up to one's own.

Without this rule, a paused driver wakes and aborts its successor's prepared transactions, or a living writer reopens a swept
one.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclOperation,
    ResourcePatternType,
    ResourceType,
)

from tests.live.pipeline import Tasks, record_batch
from tests.live.rules.batches import ROWS, VISIBLE, WithOrphan
from tests.live.rules.schedules import Play, at, crash, playing, work_of, writer_of
from tests.live.security_support import allow
from tests.live.services import KafkaService, chosen
from twopc.errors import CommitBlockedError, ConfigurationError, RetriableError
from twopc.integration.services.kafka import LocalKafka
from twopc.pending import Pending
from twopc.sinks.kafka.reports import NO_ANSWER, Listing
from twopc.sinks.kafka.transactions import TransactionClient
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from twopc.coordinator import Coordinator
    from twopc.sinks.kafka.handle import ProducerIdentity


def wake_and_fail(driver: Coordinator, play: Play, batch: int) -> None:
    """Wake a paused driver and fail its next batch, so that it sweeps its attempt."""

    def fail(_: int) -> None:
        raise InjectedFault

    with pytest.raises(InjectedFault):
        driver.process(play.batch(batch), Tasks(play, [["late"]], between=fail))


def test_a_fenced_driver_that_wakes_does_not_sweep_its_successors_transactions(play: Play) -> None:
    """Fails if the sweep ignores the driver epoch: the successor's confirmed transactions would be aborted."""
    loser, winner = play.driver(), play.driver()
    loser.process(play.batch(0), Tasks(play, [["zero"]]))
    play.forget_worker()
    with at("driver.confirmed", lambda: wake_and_fail(loser, play, 1)):
        winner.process(play.batch(1), Tasks(play, ROWS))
    assert play.plans() == ["write", "write"]
    assert play.open_transactions() == ()  # the transactions of the loser's own attempt are gone
    assert play.visible() == VISIBLE + Counter(["zero"])


def test_a_fenced_driver_that_wakes_does_not_sweep_its_successors_decision(play: Play) -> None:
    """The decision's record is written, its transaction open. Fails if the driver's id counts as a task's id."""
    loser, winner = play.driver(), play.driver()
    loser.process(play.batch(0), Tasks(play, [["zero"]]))

    def sweep() -> None:
        assert f"{play.name}.driver" in play.open_transactions()
        wake_and_fail(loser, play, 1)

    play.forget_worker()
    with at("driver.deciding", sweep):
        winner.process(play.batch(1), Tasks(play, ROWS))
    winner.process(play.batch(2), Tasks(play, [["two"]]))
    assert play.visible() == VISIBLE + Counter(["zero", "two"])


def test_an_orphan_of_the_same_driver_epoch_is_swept_right_after_the_decision(play: Play) -> None:
    """If it stayed open, it would hold back readers. Fails if the sweep spares its own driver epoch after the decision."""
    tasks = WithOrphan(play, ROWS)
    play.driver().process(play.batch(0), tasks)
    assert play.open_transactions() == ()
    assert play.describe(tasks.orphan.transactional_id).producer_epoch > tasks.orphan.producer_epoch
    assert play.end(tasks.orphan, commit=True) != "NONE"
    assert play.visible() == VISIBLE


def test_a_new_driver_sweeps_undecided_transactions_of_a_dead_one(play: Play) -> None:
    """Fails if acquiring does not sweep: readers of the output would wait until the transactions time out."""
    crash(play.driver(), play, 0, [["x"], ["y"]], "driver.confirmed")
    assert len(play.open_transactions()) == 2
    with at("driver.recovered", lambda: play.open_transactions() == () or pytest.fail("not swept")):
        play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert play.visible() == VISIBLE


def test_the_orphans_of_a_dead_driver_are_counted_only_once_by_the_next_driver(play: Play) -> None:
    """A transaction that a dead driver decided is not an orphan. Fails if a sweep is not counted, or is counted again."""
    crash(play.driver(), play, 0, [["x"], ["y"], ["z"]], "driver.confirmed")
    orphans, driver, counted = len(play.open_transactions()), play.driver(), []
    for batch in (0, 1):
        pending = Pending(batch)
        driver.process(play.batch(batch), Tasks(play, ROWS), pending)
        counted.append(pending.ended(None).orphans_ended)
    assert (orphans, counted) == (3, [3, 0])
    crash(driver, play, 2, ROWS, "driver.decided")
    pending = Pending(2)
    play.driver().process(play.batch(2), Tasks(play, ROWS), pending)
    assert pending.ended(None).orphans_ended == 0


def test_an_id_of_a_decided_batch_is_swept_when_an_undecided_batch_reuses_it(play: Play) -> None:
    """If it were spared, its open transaction would hide markers until it times out.

    Fails if the sweep spares by the id alone.
    """
    play.driver().process(play.batch(0), Tasks(play, [["zero"]]))
    [handle] = play.decided(0)
    # The transaction's worker may reuse the id in batch 1, because batch 0 is proven committed.
    play.open_foreign(handle.transactional_id, play.sink.ledger, handle.marker_partition)
    play.driver().process(play.batch(1), Tasks(play, [["one"]]))
    assert play.open_transactions() == ()
    assert play.visible() == Counter(["zero", "one"])


def test_the_writer_of_a_swept_transaction_is_fenced(play: Play) -> None:
    """A zombie keeps writing after the sweep. Fails if the sweep uses EndTxn: the zombie would reopen at its epoch."""
    driver = play.driver()
    driver.recover(play.batch(0))
    zombie = writer_of(play, work_of(play, 0, driver_epoch=driver.log_epoch), 1)
    zombie.write_rows(record_batch(["zombie"]))
    assert zombie._begun.producer.flush(10) == 0
    play.forget_worker()
    driver.process(play.batch(0), Tasks(play, ROWS))
    assert play.open_transactions() == ()

    with pytest.raises(RetriableError, match="newer driver or task has initialized the transactional id"):
        zombie.snapshot_state(0)
    zombie.close()
    assert play.open_transactions() == ()
    assert play.visible() == VISIBLE


def make_unreachable(monkeypatch: pytest.MonkeyPatch, transactional_id: str) -> None:
    """Drop all commits of one transaction, without a response."""
    really = TransactionClient.end

    def end(client: TransactionClient, identities: Sequence[ProducerIdentity], **how: Any) -> dict[str, str]:
        reached = [identity for identity in identities if identity.transactional_id != transactional_id]
        answers = really(client, reached, **how) if reached else {}
        return {identity.transactional_id: NO_ANSWER for identity in identities} | answers

    monkeypatch.setattr(TransactionClient, "end", end)


def test_a_decided_but_uncommitted_transaction_is_not_swept(
    kafka: KafkaService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two commits goes unanswered across a restart. Fails if the sweep spares no decided id: a torn batch."""
    with playing(kafka, tmp_path, timeout_ms=4_000) as play:
        crash(play.driver(), play, 0, ROWS, "driver.decided")
        spared = play.decided(0)[1]
        with monkeypatch.context() as patch:
            make_unreachable(patch, spared.transactional_id)
            with pytest.raises(CommitBlockedError):
                play.driver().process(play.batch(0), Tasks(play, ROWS))
        assert play.open_transactions() == (spared.transactional_id,)
        replay = Tasks(play, ROWS)
        play.driver().process(play.batch(0), replay)
        assert (replay.prepared, replay.evaluated) == (0, 1)
        assert play.visible() == VISIBLE


def test_a_sink_whose_name_begins_with_this_sinks_name_is_not_swept(kafka: KafkaService, tmp_path: Path) -> None:
    """The sink "orders" sweeps while "orders-eu" has prepared. Fails if the listed prefix does not end with a dot."""
    with playing(kafka, tmp_path / "orders") as orders:
        eu = f"{orders.name}-eu"
        with playing(kafka, tmp_path / "eu", name=eu) as orders_eu:
            orders.driver().process(orders.batch(0), Tasks(orders, [["zero"]]))
            with at("driver.confirmed", lambda: orders.driver().process(orders.batch(1), Tasks(orders, ROWS))):
                orders_eu.driver().process(orders_eu.batch(0), Tasks(orders_eu, ROWS))
            assert orders_eu.plans() == ["write"]
            assert orders_eu.decisions()[0].attempt.counter == 1
            assert orders_eu.visible() == VISIBLE
        assert orders.visible() == VISIBLE + Counter(["zero"])


def test_an_incomplete_sweep_is_reported_and_repeated_and_fails_no_batch(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker does not respond to the listing request after batch 0. Fails if an incomplete listing is not retried."""
    driver = play.driver()
    driver.recover(play.batch(0))
    tasks = WithOrphan(play, ROWS)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(TransactionClient, "list_open", lambda *_: Listing((), complete=False))
        driver.process(play.batch(0), tasks)
    assert "incomplete" in caplog.text
    assert play.open_transactions() == (tasks.orphan.transactional_id,)
    driver.process(play.batch(1), Tasks(play, [["d"]]))
    assert play.open_transactions() == ()
    assert play.visible() == VISIBLE + Counter("d")


SECURED = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.secured.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
AS_ANN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "ann",
    "kafka.sasl.password": "secret",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalKafka]:
    """A broker with access control. On the plain listener, everybody may do everything."""
    if chosen() == "docker":
        pytest.skip("this test starts a separate broker")
    broker = LocalKafka(properties=SECURED, listeners={"SECURED": "SASL_PLAINTEXT"})
    if broker.version.startswith("3.0."):
        pytest.skip("with KRaft, access control requires Kafka 3.2 or newer (KIP-801)")
    with broker:
        yield broker


def allow_all(broker: LocalKafka, *resources: tuple[ResourceType, str]) -> None:
    allow(broker, [(kind, name, ResourcePatternType.LITERAL, AclOperation.ALL) for kind, name in resources])


def test_a_driver_that_may_not_describe_its_transactional_ids_is_refused_before_it_fences_any_driver(
    guarded: LocalKafka, tmp_path: Path
) -> None:
    """The broker would silently omit its orphans from the listing. Fails if `inspect` does not check this right.

    The driver has every other right, and for its driver id even this one.
    """
    with playing(KafkaService(guarded.bootstrap_servers), tmp_path) as play:
        healthy = play.driver()
        healthy.process(play.batch(0), Tasks(play, [["zero"]]))
        allow_all(guarded, (ResourceType.TOPIC, "*"), (ResourceType.TRANSACTIONAL_ID, f"{play.name}.driver"))
        play.sink = dataclasses.replace(play.sink, bootstrap_servers=guarded.address("SECURED"), options=AS_ANN)
        with pytest.raises(ConfigurationError, match="Allow Describe and Write on transactional ids with the prefix"):
            play.driver().process(play.batch(1), Tasks(play, [["refused"]]))
        play.sink = dataclasses.replace(play.sink, bootstrap_servers=guarded.bootstrap_servers, options={})
        healthy.process(play.batch(1), Tasks(play, ROWS))
        assert len(play.acquisitions()) == 1
        assert play.visible() == VISIBLE + Counter(["zero"])
