"""Rule 13: a ledger belongs to one sink. Two sinks that share one are refused before either of them writes or fences."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Query, Tasks, opened
from tests.live.rules.schedules import Play, at, playing
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService
    from twopc.sinks.kafka import KafkaSink


def test_two_sinks_of_a_query_with_the_same_ledger_are_refused_until_each_has_its_own_ledger(
    play: Play, tmp_path: Path
) -> None:
    """Rule 13. Caught mutation: ``Participants.bindings`` compares nothing (the first restart is then refused forever)."""
    other = Query(play.bootstrap_servers, tmp_path)
    elsewhere = play.bootstrap_servers.replace("127.0.0.1", "localhost")  # the same cluster by another name
    sharing = dataclasses.replace(other.sink, bootstrap_servers=elsewhere, ledger_topic=play.sink.ledger)

    def start(second: KafkaSink, batch: int) -> Tasks:
        sinks = [play.sink, second]
        driver = Coordinator(sinks, LocalFiles(tmp_path / "twopc"))
        opened.append(driver)
        engine = Tasks(play, [[f"{batch}"]], sinks=sinks)
        driver.process(play.batch(batch), engine)
        return engine

    with pytest.raises(ConfigurationError, match=f"share the decision log {play.sink.ledger}.*remove ledger_topic"):
        start(sharing, 0)
    assert play._records() == []
    as_told = dataclasses.replace(sharing, ledger_topic=None)
    assert start(as_told, 0).prepared == 1
    assert start(as_told, 1).prepared == 1
    assert play.visible() == other.visible() == {"0": 1, "1": 1}


def test_a_sink_configured_with_another_sinks_ledger_is_refused_and_fences_no_driver(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Rule 13. Caught mutation: ``KafkaDecisionLog.inspect`` accepts every acquired record."""
    name = f"b{uuid.uuid4().hex[:10]}"
    with playing(kafka, tmp_path / "a") as owner:
        healthy = owner.driver()
        healthy.process(owner.batch(0), Tasks(owner, [["0"]]))
        with playing(kafka, tmp_path / "b", name=name, ledger_topic=owner.sink.ledger) as guest:
            engine = Tasks(guest, [["x"]])
            refusal = rf"{owner.sink.ledger} belongs to sink '{owner.name}'.*Remove ledger_topic from sink '{name}'"
            with pytest.raises(ConfigurationError, match=refusal):
                guest.driver().process(guest.batch(0), engine)
            assert engine.prepared == 0
            assert len(owner.acquisitions()) == 1
            healthy.process(owner.batch(1), Tasks(owner, [["1"]]))
            guest.sink = dataclasses.replace(guest.sink, ledger_topic=None)
            guest.driver().process(guest.batch(0), Tasks(guest, [["x"]]))
            assert guest.visible() == {"x": 1}
        owner.driver().process(owner.batch(2), Tasks(owner, [["2"]]))
        assert owner.visible() == {"0": 1, "1": 1, "2": 1}


def test_a_guest_that_started_on_an_empty_ledger_is_refused_without_blocking_the_owner(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Rule 13. Seen: its record was the first of its kind that a truncation had left, so the owner never started again."""
    name = f"b{uuid.uuid4().hex[:10]}"
    with (
        playing(kafka, tmp_path / "a") as owner,
        playing(kafka, tmp_path / "b", name=name, ledger_topic=owner.sink.ledger) as guest,
    ):

        def run_ahead() -> None:
            healthy = owner.driver(Settings(keep_batches=1))
            for batch in range(3):
                healthy.process(owner.batch(batch), Tasks(owner, [[f"{batch}"]]))

        engine = Tasks(guest, [["x"]])
        belongs = rf"{owner.sink.ledger} belongs to sink '{owner.name}'"
        with pytest.raises(ConfigurationError, match=belongs), at("driver.inspected", run_ahead):
            guest.driver().process(guest.batch(0), engine)
        assert engine.prepared == 0
        owner.driver().process(owner.batch(3), Tasks(owner, [["3"]]))
        with pytest.raises(ConfigurationError, match=belongs):
            guest.driver().process(guest.batch(0), engine)
        assert owner.visible() == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_a_new_ledger_for_a_sink_name_already_used_on_this_cluster_causes_a_warning(
    play: Play, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 13. A transactional id has no ledger in its name, so the two sinks fence each other."""
    warning = f"a driver of sink '{play.name}' has already used this cluster"
    healthy = play.driver()
    healthy.process(play.batch(0), Tasks(play, [["0"]]))
    play.driver().process(play.batch(1), Tasks(play, [["1"]]))
    assert warning not in caplog.text
    namesake = dataclasses.replace(play.sink, ledger_topic=f"other-{uuid.uuid4().hex[:10]}")
    driver = Coordinator([namesake], LocalFiles(tmp_path / "another" / "twopc"))
    opened.append(driver)
    driver.recover(play.batch(0))
    assert warning in caplog.text
