"""KAFKA-17754: a delayed EndTxn ends the *next* transaction of the same producer, since both have the same epoch.

Found by Jepsen (https://jepsen.io/analyses/bufstream-0.1.0, https://issues.apache.org/jira/browse/KAFKA-17754): aborted
reads, lost writes, torn transactions. KIP-890 prevents it for clients of transactions V2, which bump the epoch with every
transaction; librdkafka uses V1. The first tests show it on a bare producer, the others that it does no harm here.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import at, until
from tests.live.services import KafkaService, chosen
from tests.nemesis.conftest import REQUEST_TIMEOUT_MS, playing_behind
from tests.nemesis.frames import NONE, Api
from tests.nemesis.proxy import KafkaProxy
from tests.nemesis.schedules import let_a_commit_arrive_late, of_driver, process
from tests.reader import committed
from twopc.errors import DecisionInDoubtError
from twopc.integration.services.kafka import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from tests.live.rules.schedules import Play

#: A broker's setting since Kafka 3.6. It can be changed while the broker is running.
VERIFICATION = "transaction.partition.verification.enable"


def bare_producer(proxy: KafkaProxy, transactional_id: str) -> Producer:
    """A producer as in the client's own examples: one transaction after the other."""
    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "transactional.id": transactional_id,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "log_level": 0,
        }
    )
    producer.init_transactions(10)
    return producer


def write(producer: Producer, topic: str, value: str, partition: int) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, partition=partition)
    producer.flush(10)


def test_a_late_commit_publishes_a_bare_producers_next_transaction_even_if_the_producer_aborts_it(
    kafka: KafkaService, proxy: KafkaProxy
) -> None:
    """The report's aborted read, on a broker with KIP-890: V1 clients keep their epoch."""
    name = f"bare-{uuid.uuid4().hex}"
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = bare_producer(proxy, name)
    held = proxy.on(Api.END_TXN, transactional_id=name).hold()
    write(producer, topic, "first", 0)
    producer.commit_transaction(20)  # the first request is still on its way; a second one was answered
    write(producer, topic, "second", 1)
    held.release()
    assert held.wait().answer() == NONE
    assert until(lambda: committed(kafka.bootstrap_servers, topic) == Counter(["first", "second"]))
    with pytest.raises(KafkaException) as refused:
        producer.abort_transaction(10)
    assert refused.value.args[0].code() == KafkaError.INVALID_TXN_STATE


def test_a_late_abort_loses_a_bare_producers_next_transaction(kafka: KafkaService, proxy: KafkaProxy) -> None:
    """The reverse: the transaction that the application then commits has been aborted."""
    name = f"bare-{uuid.uuid4().hex}"
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = bare_producer(proxy, name)
    held = proxy.on(Api.END_TXN, transactional_id=name).hold()
    write(producer, topic, "first", 0)
    producer.abort_transaction(20)
    write(producer, topic, "second", 1)
    held.release()
    assert held.wait().answer() == NONE
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(10)
    assert refused.value.args[0].code() == KafkaError.INVALID_TXN_STATE
    assert committed(kafka.bootstrap_servers, topic) == Counter()


def test_a_late_commit_of_a_task_ends_no_later_transaction(play: Play, proxy: KafkaProxy) -> None:
    """Rule 5."""
    let_a_commit_arrive_late(play, proxy)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_late_commit_of_the_driver_only_commits_its_next_decision_early(
    play: Play, proxy: KafkaProxy, batch: int
) -> None:
    """Rule 12: the commit of decision N is answered at the second try. The first try arrives when N+1 is written."""
    driver = play.driver()
    driver.recover(play.batch(0))
    held = proxy.on(Api.END_TXN, transactional_id=of_driver(play), nth=batch + 1).hold()
    for number in range(batch + 1):
        process(driver, play, number)
    late = held.wait()

    def arrive() -> None:
        held.release()
        assert late.answer() == NONE

    with at("driver.deciding", arrive):
        process(driver, play, batch + 1)
    process(driver, play, batch + 2)
    assert [decision.batch_id for decision in play.decisions()] == list(range(batch + 3))
    assert play.visible() == seen(batch + 3)


@pytest.mark.parametrize("parts_written", [0, 1])
def test_a_late_commit_of_the_driver_cannot_publish_a_partial_decision(
    play: Play, proxy: KafkaProxy, elsewhere: ThreadPoolExecutor, parts_written: int
) -> None:
    """Rules 12 and 14: the commit of the previous decision arrives when the next one, in several parts, is half written.

    An incomplete decision is ignored; the batch is neither lost nor duplicated, the next driver starts. Brokers that verify no
    transaction take the rest of the decision, too, so the next driver's first record completes it.
    """
    with_small_ledger(play)
    play.offsets[1] = ("x" * 30_000,)  # the decision is cut into four parts
    half_published(play, proxy, elsewhere, parts_written)


@pytest.fixture(scope="module")
def unverifying() -> Iterator[KafkaService]:
    """A broker whose version verifies transactions, but whose settings do not."""
    if chosen() != "local":
        pytest.skip("this test starts a broker with other settings")
    with LocalKafka(properties={VERIFICATION: "false"}) as broker:
        yield KafkaService(broker.bootstrap_servers)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_decision_is_not_believed_if_a_broker_of_any_version_verifies_nothing(
    unverifying: KafkaService, tmp_path: Path, elsewhere: ThreadPoolExecutor, parts: int
) -> None:
    """Fails if the driver judges by the broker's version: it would publish the rows of a batch whose decision is incomplete."""
    with (
        KafkaProxy(unverifying.bootstrap_servers) as proxy,
        playing_behind(proxy, unverifying, tmp_path / "checkpoint") as play,
    ):
        if parts > 1:
            with_small_ledger(play)
            play.offsets[1] = ("x" * 30_000,)
        half_published(play, proxy, elsewhere, parts_written=parts - 1)


def half_published(play: Play, proxy: KafkaProxy, elsewhere: ThreadPoolExecutor, parts_written: int) -> None:
    """Let the commit of decision 0 arrive when only the first parts of decision 1 are written."""
    driver = play.driver()
    driver.recover(play.batch(0))
    held = proxy.on(Api.END_TXN, transactional_id=of_driver(play)).hold()
    process(driver, play, 0)
    late = held.wait()
    written = proxy.on(Api.PRODUCE, transactional_id=of_driver(play), times=parts_written).watch()
    waiting = proxy.on(Api.PRODUCE, transactional_id=of_driver(play), nth=parts_written + 1).hold()
    deciding = elsewhere.submit(driver.process, play.batch(1), Tasks(play, rows_of(1)))
    waiting.wait()
    if parts_written:
        written.wait().wait()
    end = end_of_ledger(play)
    held.release()
    assert late.answer() == NONE
    assert until(lambda: end_of_ledger(play) > end)  # the late commit writes no marker after the next part
    waiting.release()
    assert isinstance(deciding.exception(60), DecisionInDoubtError)
    successor = play.driver()
    assert process(successor, play, 1) == ((1, 0) if verifies(play) else (0, 1))
    process(successor, play, 2)
    assert play.visible() == seen(3)


def end_of_ledger(play: Play) -> int:
    admin = AdminClient({"bootstrap.servers": play.sink.bootstrap_servers, "log_level": 0})
    place = TopicPartition(play.sink.ledger, 0)
    return int(admin.list_offsets({place: OffsetSpec.latest()})[place].result().offset)


def verifies(play: Play) -> bool:
    """Whether the broker rejects a record whose transaction has ended. Brokers before 3.6 do not know the setting."""
    admin = AdminClient({"bootstrap.servers": play.sink.bootstrap_servers, "log_level": 0})
    [broker] = admin.describe_cluster().result().nodes
    [found] = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(broker.id))]).values()
    setting = found.result().get(VERIFICATION)
    return setting is not None and setting.value == "true"


def with_small_ledger(play: Play) -> None:
    """Limit the ledger's records, so that decisions are cut into parts of 9 kB."""
    small = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "10000"}
    create_topic(play.bootstrap_servers, play.sink.ledger, 9, small)


def test_a_decision_published_by_a_late_commit_is_not_reported_as_unwritten(
    play: Play, proxy: KafkaProxy, elsewhere: ThreadPoolExecutor
) -> None:
    """Rule 12: the acknowledgement of decision 1 is lost, and the late commit of decision 0 publishes it.

    A driver that believed it unwritten might sweep decided transactions. It is in doubt until a restart reads it. Brokers that
    verify no transaction let the driver commit it a second time, which is not an error.
    """
    driver = play.driver()
    driver.recover(play.batch(0))
    held = proxy.on(Api.END_TXN, transactional_id=of_driver(play)).hold()
    process(driver, play, 0)
    late = held.wait()
    unheard = proxy.on(Api.PRODUCE, transactional_id=of_driver(play)).drop_response()
    deciding = elsewhere.submit(driver.process, play.batch(1), Tasks(play, rows_of(1)))
    unheard.wait().wait()
    held.release()
    assert late.answer() == NONE
    error = deciding.exception(60)
    assert len(play.decisions()) == 2, "the late commit should have published the decision"
    successor = play.driver()
    assert process(successor, play, 1) == (0, 1)
    assert play.visible() == seen(2)
    if verifies(play):
        assert isinstance(error, DecisionInDoubtError), f"reported as {error!r}"
    else:
        assert error is None
