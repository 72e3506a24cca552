"""Rule 14: the topics of rows. One row in a ledger would stop every later start, and an unknown topic is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.live.pipeline import create_topic
from tests.live.rules.schedules import playing
from tests.reader import committed
from tests.tasks import prepare_all
from twopc.errors import BadRecordError
from twopc.records import TaskReport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.rules.schedules import Play
    from tests.live.services import KafkaService
    from twopc.engine import Work


class Addressed:
    """An engine of one task whose rows name their own topics: ``(topic, value)``."""

    def __init__(self, play: Play, *rows: tuple[str, str]) -> None:
        self._play = play
        self._rows = rows

    def prepare(self, work: Work) -> list[TaskReport]:
        handles = prepare_all([self._play.sink], work, 0, [batch_of(self._rows)])
        return [TaskReport(partition=0, rows=len(self._rows), checksum=0, handles=handles)]

    def evaluate(self) -> None: ...


def batch_of(rows: tuple[tuple[str, str], ...]) -> pa.RecordBatch:
    topics, values = zip(*rows, strict=True)
    return pa.record_batch({"value": pa.array([value.encode() for value in values]), "topic": pa.array(topics)})


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    """A query whose rows name their topics; an unknown one fails after two seconds."""
    options = {"kafka.topic.metadata.propagation.max.ms": "2000"}
    with playing(kafka, tmp_path, topic=None, options=options) as play:
        yield play


def test_a_row_sent_to_the_sinks_own_ledger_stops_its_batch_and_not_every_later_start(play: Play) -> None:
    """Rule 14. Caught mutation: ``KafkaSettings.require_topics`` lets a ledger pass (every later start is damaged)."""
    play.driver().process(play.batch(0), Addressed(play, (play.topic, "0")))
    with pytest.raises(BadRecordError, match=f"'{play.sink.ledger}' in the 'topic' column.*Fix the column"):
        play.driver().process(play.batch(1), Addressed(play, (play.topic, "x"), (play.sink.ledger, "y")))
    play.driver().process(play.batch(1), Addressed(play, (play.topic, "1")))
    assert play.visible() == {"0": 1, "1": 1}


def test_every_unknown_topic_of_a_batch_is_reported_and_nothing_is_lost_once_they_are_created(play: Play) -> None:
    """Caught mutation: the error is that of the first delivery report, without its topic."""
    absent = [f"{play.name}-b", f"{play.name}-a"]
    rows = [(topic, f"{topic} {number}") for number in range(3) for topic in (*absent, play.topic)]
    with pytest.raises(BadRecordError) as raised:
        play.driver().process(play.batch(0), Addressed(play, *rows))
    assert all(f"writing to {topic} " in str(raised.value) for topic in absent)
    assert f"writing to {play.topic} " not in str(raised.value)
    assert "does not exist: create it" in str(raised.value)
    assert not play.visible()
    for topic in absent:
        create_topic(play.bootstrap_servers, topic)
    play.driver().process(play.batch(0), Addressed(play, *rows))
    for topic in (*absent, play.topic):
        assert committed(play.bootstrap_servers, topic) == {f"{topic} {number}": 1 for number in range(3)}
