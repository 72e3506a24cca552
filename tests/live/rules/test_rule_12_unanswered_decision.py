"""Rule 12: if the commit of a decision gets no response, it must not be retried; only a restart resolves the doubt.

Without this rule, the broker commits the decision, its response is lost, and the batch is decided again or swept. Or librdkafka
repeats EndTxn inside ``commit_transaction()``, a successor has aborted the record in between, and the retry reports success.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.live.pipeline import Tasks
from tests.live.rules.schedules import Play, at, playing, spied_read_backs, until
from twopc.errors import DecisionInDoubtError, FencedError, RetriableError
from twopc.sinks.kafka import driver_producer
from twopc.sinks.kafka.driver_producer import DriverProducer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka import Producer

    from tests.live.services import KafkaService
    from twopc.coordinator import Coordinator
    from twopc.integration.services.kafka import LocalKafka

ROWS = (("a",), ("b",))
ONCE = {"a": 1, "b": 1}
#: How long the controller may take to admit the broker again after a pause.
BACK_WITHIN_S = 30


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path, timeout_ms=4_000) as play:
        yield play


class Unanswered:
    """The driver's producer behind a network that loses the first ``losses`` commits."""

    def __init__(self, producer: Producer, losses: float) -> None:
        self._producer = producer
        self._losses = losses

    def commit_transaction(self, timeout: float) -> None:
        if self._losses > 0:
            self._losses -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "as armed", retriable=True))
        self._producer.commit_transaction(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


def lose_commits(driver: Coordinator, play: Play, losses: float = float("inf")) -> None:
    """Acquire the sink, then lose the driver's commits."""
    driver.recover(play.batch(0))
    log: Any = driver.log
    log._producer._producer = Unanswered(log._producer._producer, losses)


def decided(play: Play) -> int | None:
    """The number of decisions; None while the broker is not back in service.

    The broker responds to reads first. The controller needs a few more seconds until it responds to a startup's
    requests.
    """
    committer = play.sink.create_committer()
    try:
        committer.inspect()
        return len(play.decisions())
    except RetriableError:
        return None
    finally:
        committer.close()


def restart(play: Play, engine: Tasks) -> None:
    """Start a driver on batch 0. Repeat this until the broker is back, because its controller comes and goes after a pause.

    Until then a start fails before it fences any driver, with an error that says this.
    """
    deadline = time.monotonic() + BACK_WITHIN_S
    while True:
        try:
            play.driver().process(play.batch(0), engine)
        except RetriableError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def give_up_soon(monkeypatch: pytest.MonkeyPatch, milliseconds: int = 500) -> None:
    monkeypatch.setattr(driver_producer, "_DRIVER_TRANSACTION_TIMEOUT_MS", milliseconds)


def test_a_restart_resolves_a_decision_left_unanswered_by_a_hanging_broker(
    play: Play, local_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a missing response is a RetriableError, or if ``process`` forgets its doubt and decides again."""
    driver, engine = play.driver(), Tasks(play, ROWS)
    driver.recover(play.batch(0))
    give_up_soon(monkeypatch)
    try:
        with (
            at("driver.deciding", local_kafka.pause),
            pytest.raises(DecisionInDoubtError, match="received no response"),
        ):
            driver.process(play.batch(0), engine)
    finally:
        local_kafka.resume()
    # The request is still on its way: the resumed broker will read it.
    assert until(lambda: decided(play) == 1, BACK_WITHIN_S)
    with pytest.raises(DecisionInDoubtError):
        driver.process(play.batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (1, 0)
    monkeypatch.undo()
    replay = Tasks(play, ROWS)
    restart(play, replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert len(play.decisions()) == 1
    assert play.visible() == ONCE


def test_a_driver_in_doubt_decides_nothing_more_and_does_not_disturb_its_successor(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails as above, or if the driver in doubt initialises its producer again, which fences its successor."""
    doubtful = play.driver()
    lose_commits(doubtful, play)
    give_up_soon(monkeypatch)
    with pytest.raises(DecisionInDoubtError):
        doubtful.process(play.batch(0), Tasks(play, ROWS))
    monkeypatch.undo()
    successor, replay = play.driver(), Tasks(play, ROWS)
    successor.process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (1, 0)  # the batch was not decided, so the restart wrote it
    again = Tasks(play, ROWS)
    for batch in (0, 1):
        with pytest.raises(DecisionInDoubtError):
            doubtful.process(play.batch(batch), again)
    assert (again.prepared, again.evaluated) == (0, 0)
    successor.process(play.batch(1), Tasks(play, [["c"]]))
    assert [decision.batch_id for decision in play.decisions()] == [0, 1]
    assert play.visible() == {**ONCE, "c": 1}


def test_a_retriable_error_repeats_the_commit_and_not_the_decision(play: Play) -> None:
    """Fails if the first error puts the batch in doubt, or if it writes the decision again."""
    driver, engine = play.driver(), Tasks(play, ROWS)
    lose_commits(driver, play, losses=3)
    driver.process(play.batch(0), engine)
    assert (engine.prepared, len(play.decisions())) == (1, 1)
    assert play.visible() == ONCE


def test_the_commit_waits_for_a_hanging_broker_and_reads_its_record_back(
    play: Play, local_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the commit only waits for the time of one request, or if a slow commit is trusted without reading back."""
    read_back = spied_read_backs(monkeypatch)
    resume = threading.Timer(1.0, local_kafka.resume)
    driver, engine = play.driver(), Tasks(play, ROWS)
    driver.recover(play.batch(0))
    read_back.clear()

    def hang() -> None:
        local_kafka.pause()
        resume.start()

    try:
        with at("driver.deciding", hang):
            driver.process(play.batch(0), engine)
    finally:
        resume.join()
    assert len(read_back) == 1
    assert (engine.prepared, len(play.decisions())) == (1, 1)
    assert play.visible() == ONCE


def test_a_slow_commit_is_read_back(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if reading back expects a record other than the written one, or never ends."""
    read_back = spied_read_backs(monkeypatch)
    monkeypatch.setattr(driver_producer, "_SLOW_COMMIT_S", -1)
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))
    driver.process(play.batch(1), Tasks(play, [[]]))
    entries = {entry.offset for entry in play.sink.create_decision_log().inspect().entries}
    assert len(read_back) == 3  # acquisition, decisions
    assert set(read_back) <= entries
    assert play.visible() == ONCE


def test_a_commit_that_succeeds_for_an_aborted_record_is_detected(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a slow commit is not read back: rows of an undecided batch would be published, then duplicated."""
    fenced = play.driver()
    fenced.recover(play.batch(0))
    with monkeypatch.context() as patched:
        patched.setattr(driver_producer, "_SLOW_COMMIT_S", -1)
        # The worst case of a repeated EndTxn: a newer driver has acquired the sink, and the call returns without an
        # error.
        patched.setattr(DriverProducer, "_commit", lambda *_: play.fence(f"{play.name}.driver"))
        with pytest.raises(FencedError, match="was aborted, although librdkafka reported success"):
            fenced.process(play.batch(0), Tasks(play, ROWS))
    assert play.decisions() == []
    assert play.visible() == {}
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, len(play.decisions())) == (1, 1)
    assert play.visible() == ONCE


def test_a_commit_that_cannot_be_read_back_is_in_doubt(
    play: Play, local_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the failed read-back raises a RetriableError, as if nothing had been written."""
    driver, engine = play.driver(), Tasks(play, ROWS)
    driver.recover(play.batch(0))
    really = DriverProducer._commit

    def commit_and_hang(producer: DriverProducer) -> None:
        really(producer)
        local_kafka.pause()

    try:
        with monkeypatch.context() as patched:
            patched.setattr(driver_producer, "_SLOW_COMMIT_S", -1)
            patched.setattr(DriverProducer, "_commit", commit_and_hang)
            with pytest.raises(DecisionInDoubtError, match="cannot be read back"):
                driver.process(play.batch(0), engine)
    finally:
        local_kafka.resume()
    with pytest.raises(DecisionInDoubtError):
        driver.process(play.batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (1, 0)
    assert until(lambda: decided(play) == 1, BACK_WITHIN_S)
    replay = Tasks(play, ROWS)
    restart(play, replay)
    assert (replay.prepared, replay.evaluated, len(play.decisions())) == (0, 1, 1)
    assert play.visible() == ONCE


def test_a_driver_fenced_while_it_decides_has_decided_nothing(play: Play) -> None:
    """Fails if a fenced commit is retried like an unanswered one, or counts as in doubt."""
    fenced, successor = play.driver(), play.driver()

    def acquire() -> None:
        successor.process(play.batch(0), Tasks(play, [["b"], ["a"]]))

    with at("driver.deciding", acquire), pytest.raises(FencedError):
        fenced.process(play.batch(0), Tasks(play, ROWS))
    assert len(play.decisions()) == 1
    successor.process(play.batch(1), Tasks(play, [["c"]]))
    assert play.visible() == {**ONCE, "c": 1}
