"""Brokers that create every topic that a client asks for, which is Kafka's default. No command makes them create one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.live.operate.support import command
from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS
from tests.live.rules.schedules import playing
from tests.live.services import KafkaService
from twopc.errors import TwoPhaseCommitError
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka.driver_producer import DriverProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.rules.schedules import Play


@pytest.fixture(scope="module")
def creating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """A query that has written a batch, on such a broker."""
    with (
        LocalKafka(properties={"auto.create.topics.enable": "true"}) as broker,
        playing(KafkaService(broker.bootstrap_servers, broker), tmp_path_factory.mktemp("checkpoint")) as play,
    ):
        play.driver().process(play.batch(0), Tasks(play, ROWS))
        play.forget_worker()
        yield play


QUICK = (
    "preflight --sink absent --topic absent-output",
    "status",
    "status absent",
    "transactions list absent",
    "verify --sink {name} --ledger-topic absent-ledger",
)
WHOLE = (
    "preflight --sink {name} --topic {topic}",
    "preflight --sink {name} --ledger-topic absent-ledger",
    "status {name} --ledger-topic absent-ledger",
    "transactions list",
    "resolve absent",
    "verify --sink absent",
    "verify --sink {name}",
    "migrate preflight --sink absent --topic absent-output --source-topic absent-in --source-bootstrap-servers {servers}",
)


@pytest.mark.parametrize("words", [*QUICK, *(pytest.param(words, marks=pytest.mark.whole) for words in WHOLE)])
def test_a_command_leaves_no_topic_behind(creating: Play, words: str) -> None:
    """This caught a bug: the preflight's producer treated each letter of its topic's name as a topic."""
    before = topics_of(creating)
    asked = words.format(name=creating.name, topic=creating.topic, servers=creating.bootstrap_servers).split()
    said = command(*asked, "--bootstrap-servers", creating.bootstrap_servers, "--timeout", "20")
    assert topics_of(creating) == before, said
    assert "Usage:" not in said.error


def test_a_driver_recreates_no_deleted_ledger(creating: Play) -> None:
    """Its admin client and its producer ask for the ledger's metadata. The tasks' producers may create outputs, as before."""
    hasty = {"kafka.topic.metadata.propagation.max.ms": "100"}
    absent = dataclasses.replace(
        creating.sink, name="absent", ledger_topic="absent-ledger", timeout_ms=5_000, options=hasty
    )
    log = absent.create_decision_log()
    try:
        with pytest.raises(TwoPhaseCommitError):
            log.topic.marker_partitions()
        producer = DriverProducer(dataclasses.replace(absent, timeout_ms=30_000), {})
        with pytest.raises(TwoPhaseCommitError):
            producer.write([(0, b"record")], point=None)
        del producer
    finally:
        log.close()
    assert absent.ledger not in topics_of(creating)


def topics_of(play: Play) -> set[str]:
    return set(AdminClient({"bootstrap.servers": play.bootstrap_servers}).list_topics(timeout=10).topics)
