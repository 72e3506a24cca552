"""Rule 11: the decision log cannot move.

Suppose that batch N is decided, and that the sink is then renamed or pointed to another cluster, or its ledger is deleted and
recreated. Without this rule, the restart finds an empty log and writes N again.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.live.broker_changes import delete_topic
from tests.live.pipeline import Tasks, opened
from tests.live.rules.schedules import Play, at, crash, die, driver_of, fed, until
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.decision_log import ABSENT
from twopc.errors import DecisionLogDamagedError, RefusedStartError
from twopc.files import LocalFiles
from twopc.sinks.kafka.ledger_topic import LedgerTopic
from twopc.sinks.kafka.transactions import TransactionClient
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from pathlib import Path


def admin(play: Play) -> AdminClient:
    return AdminClient({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})


def topic_id(play: Play, topic: str) -> str:
    return LedgerTopic(admin(play), topic, timeout_ms=10_000).identity()


def delete_ledger(play: Play) -> None:
    delete_topic(play.bootstrap_servers, play.sink.ledger)


def create_decision_log(play: Play) -> None:
    def created() -> bool:
        try:
            LedgerTopic(admin(play), play.sink.ledger, timeout_ms=10_000).ensure()
        except KafkaException:
            return False
        return True

    assert until(created)


def bindings(play: Play) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((play.root / "twopc").glob("binding-*.json"))]


@pytest.mark.parametrize("keeps_its_ledger", [False, True])
def test_a_renamed_sink_is_refused_and_the_running_query_continues(keeps_its_ledger: bool, play: Play) -> None:  # noqa: FBT001
    """Fails if ``Binding.check`` compares nothing: batch 0 would be written again."""
    healthy = play.driver()
    healthy.process(play.batch(0), Tasks(play, [["0"]]))
    renamed = dataclasses.replace(
        play.sink, name=f"{play.name}-renamed", ledger_topic=play.sink.ledger if keeps_its_ledger else None
    )
    engine = Tasks(play, [["0"]])
    with pytest.raises(RefusedStartError, match=rf"Pass each missing sink \({play.name}\) again") as caught:
        driver_of(play, [renamed]).process(play.batch(0), engine)
    assert caught.value.case == "binding"
    assert (engine.prepared, engine.evaluated) == (0, 0)
    if not keeps_its_ledger:
        assert topic_id(play, renamed.ledger) == ABSENT
    assert len(play.acquisitions()) == 1
    healthy.process(play.batch(1), Tasks(play, [["1"]]))
    assert play.visible() == {"0": 1, "1": 1}


def test_another_cluster_is_refused_and_the_running_query_continues(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if ``KafkaCommitter.binding`` omits the cluster's id."""
    healthy = play.driver()
    healthy.process(play.batch(0), Tasks(play, [["0"]]))
    engine = Tasks(play, [["0"]])
    with monkeypatch.context() as patched:
        patched.setattr(TransactionClient, "cluster_id", "another-cluster")
        with pytest.raises(RefusedStartError, match="'cluster': 'another-cluster'"):
            play.driver().process(play.batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    assert len(play.acquisitions()) == 1
    healthy.process(play.batch(1), Tasks(play, [["1"]]))
    assert play.visible() == {"0": 1, "1": 1}


def test_a_deleted_ledger_is_refused_and_not_recreated(play: Play) -> None:
    """Fails if ``Binding.check`` compares nothing, or only comes after the acquisition, which creates the ledger."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    delete_ledger(play)
    engine = Tasks(play, [["0"]])
    with pytest.raises(RefusedStartError, match=play.sink.ledger):
        play.driver().process(play.batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    assert topic_id(play, play.sink.ledger) == ABSENT
    assert play.visible() == {"0": 1}


def test_a_ledger_recreated_while_the_query_runs_stops_the_next_batch(play: Play) -> None:
    """Fails if the driver decides in the new ledger: only the next restart, perhaps weeks later, would be refused."""
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, [["0"]]))
    delete_ledger(play)
    create_decision_log(play)
    for _ in range(2):
        with pytest.raises(
            DecisionLogDamagedError, match=rf"{play.sink.ledger}.*recreated while the query was running"
        ):
            driver.process(play.batch(1), Tasks(play, [["1"]]))
    assert not play.open_transactions()
    assert play.visible() == {"0": 1}
    with pytest.raises(RefusedStartError, match="ledger_id"):
        play.driver().process(play.batch(1), Tasks(play, [["1"]]))


def test_a_ledger_recreated_under_its_name_is_refused(play: Play) -> None:
    """Fails if the ledger's identity is its name instead of the topic's id."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    delete_ledger(play)
    create_decision_log(play)
    engine = Tasks(play, [["0"]])
    with pytest.raises(RefusedStartError, match="ledger_id"):
        play.driver().process(play.batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    assert play._records() == []
    assert play.visible() == {"0": 1}


def test_a_ledger_recreated_during_the_acquisition_is_refused(play: Play) -> None:
    """Fails if the binding is only checked before the acquisition, and not again after it."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    engine = Tasks(play, [["0"]])

    def replace() -> None:
        delete_ledger(play)
        create_decision_log(play)

    with at("driver.inspected", replace), pytest.raises(RefusedStartError, match="ledger_id"):
        play.driver().process(play.batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    assert play.visible() == {"0": 1}


def test_the_binding_is_written_with_the_first_decision_and_not_before(play: Play) -> None:
    """Fails if a start already binds, or if the binding follows the decision."""
    seen: dict[str, int] = {}

    def look(point: str) -> None:
        seen[point] = len(bindings(play))

    with (
        at("driver.recovered", lambda: look("recovered")),
        at("driver.confirmed", lambda: look("confirmed")),
        at("driver.deciding", lambda: look("deciding")),
    ):
        play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    assert seen == {"recovered": 0, "confirmed": 0, "deciding": 1}
    (bound,) = bindings(play)
    assert bound["format"] == 1
    assert bound["log"] == play.sink.ledger
    assert bound["log_identity"] == topic_id(play, play.sink.ledger)
    assert bound["sinks"] == {
        play.name: {
            "cluster": play.outsider.cluster_id,
            "ledger": play.sink.ledger,
            "ledger_id": topic_id(play, play.sink.ledger),
        }
    }


def test_a_driver_that_died_before_its_decision_has_bound_nothing(play: Play) -> None:
    """Fails if a start already binds: the sink could not be renamed after the failed start."""
    crash(play.driver(), play, 0, [["0"]], "driver.recovered")
    with playing_renamed(play) as renamed:
        renamed.driver().process(renamed.batch(0), Tasks(renamed, [["0"]]))
        assert list(bindings(play)[0]["sinks"]) == [renamed.name]
        assert renamed.visible() == {"0": 1}


def test_only_one_of_two_first_drivers_with_different_sinks_decides(play: Play) -> None:
    """Fails if ``bind`` ignores a binding that another driver wrote first: both would write the batch."""
    with playing_renamed(play) as other:
        with (
            at("driver.confirmed", lambda: other.driver().process(other.batch(0), Tasks(other, [["other"]]))),
            pytest.raises(RefusedStartError, match="another driver has just bound this checkpoint"),
        ):
            play.driver().process(play.batch(0), Tasks(play, [["mine"]]))
        assert play.decisions() == []
        assert other.visible() == {"other": 1}
    assert len(bindings(play)) == 1


class playing_renamed:  # noqa: N801 - a context manager
    """The play's checkpoint and output under another sink name."""

    def __init__(self, play: Play) -> None:
        self._renamed = Play.__new__(Play)
        self._renamed.__dict__.update(play.__dict__)
        self._renamed.name = f"{play.name}-renamed"
        self._renamed.sink = dataclasses.replace(play.sink, name=self._renamed.name)
        self._renamed.outsider = TransactionClient(play.sink.committing_config())

    def __enter__(self) -> Play:
        return self._renamed

    def __exit__(self, *_: object) -> None:
        self._renamed.close()


def test_the_order_of_the_sinks_does_not_matter(pair: tuple[Play, Play]) -> None:
    """Fails if the order of the arguments chooses the deciding log."""
    first, second = pair
    driver_of(first, [second.sink, first.sink]).process(first.batch(0), fed(pair, [["0"]]))
    restarted, replay = driver_of(first, [first.sink, second.sink]), fed(pair, [["0"]])
    restarted.process(first.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    restarted.process(first.batch(1), fed(pair, [["1"]]))
    assert bindings(first)[-1]["log"] == first.sink.ledger
    assert [decision.batch_id for decision in first.decisions()] == [0, 1]
    assert second.decisions() == []
    assert first.visible() == second.visible() == {"0": 1, "1": 1}


@pytest.mark.parametrize("kept", [0, 1], ids=["the deciding one is kept", "the deciding one is removed"])
def test_a_removed_sink_is_refused_and_the_running_query_continues(kept: int, pair: tuple[Play, Play]) -> None:
    """Fails if ``Binding.check`` ignores missing sinks: batch 0 would be written again."""
    healthy = driver_of(pair[0], [play.sink for play in pair])
    healthy.process(pair[0].batch(0), fed(pair, [["0"]]))
    engine = fed([pair[kept]], [["0"]])
    with pytest.raises(RefusedStartError, match=rf"Pass each missing sink \({pair[1 - kept].name}\) again"):
        driver_of(pair[0], [pair[kept].sink]).process(pair[0].batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    healthy.process(pair[0].batch(1), fed(pair, [["1"]]))
    assert pair[0].visible() == pair[1].visible() == {"0": 1, "1": 1}


@pytest.mark.parametrize("bound", [0, 1], ids=["new one sorts last", "new one sorts first"])
def test_a_sink_joins_only_if_add_sink_names_it_and_the_deciding_log_stays_the_same(
    bound: int, pair: tuple[Play, Play]
) -> None:
    """Fails if new sinks are always accepted, or if the log is chosen again when a new sink sorts first."""
    old, new = pair[bound], pair[1 - bound]
    healthy = driver_of(old, [old.sink])
    healthy.process(old.batch(0), fed([old], [["0"]]))
    for add_sink in (None, old.name):
        with pytest.raises(RefusedStartError, match=rf"override=.*AddSink\('{new.name}'\)"):
            driver_of(old, [old.sink, new.sink], add_sink=add_sink).process(old.batch(1), fed(pair, [["1"]]))
    assert topic_id(new, new.sink.ledger) == ABSENT
    healthy.process(old.batch(1), fed([old], [["1"]]))
    driver_of(old, [old.sink, new.sink], add_sink=new.name).process(old.batch(2), fed(pair, [["2"]]))
    assert [sorted(binding["sinks"]) for binding in bindings(old)] == [[old.name], sorted([old.name, new.name])]
    assert {binding["log"] for binding in bindings(old)} == {old.sink.ledger}
    # The binding now contains the sink, so the next run needs no setting.
    driver_of(old, [old.sink, new.sink]).process(old.batch(3), fed(pair, [["3"]]))
    assert [decision.batch_id for decision in old.decisions()] == [0, 1, 2, 3]
    assert old.visible() == {"0": 1, "1": 1, "2": 1, "3": 1}
    assert new.visible() == {"2": 1, "3": 1}


def test_a_sink_whose_decisions_are_in_another_querys_log_is_refused(pair: tuple[Play, Play], tmp_path: Path) -> None:
    """Rules 10 and 11. Fails if a start does not check the sink's last owner: decided transactions would be swept."""
    with pytest.raises(InjectedFault), at("driver.decided", die):
        driver_of(pair[0], [play.sink for play in pair]).process(pair[0].batch(0), fed(pair, [["0"]]))
    intruder = Coordinator([pair[1].sink], LocalFiles(tmp_path / "elsewhere" / "twopc"))
    opened.append(intruder)
    engine = Tasks(pair[1], [["intruder"]])
    with pytest.raises(RefusedStartError, match=rf"override=EndQuery\('{pair[0].query_id}'\)"):
        intruder.process(Batch("another", 0, ("offset-0",), lambda _: None), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    replay = fed(pair, [["0"]])
    driver_of(pair[0], [play.sink for play in pair]).process(pair[0].batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert pair[0].visible() == pair[1].visible() == {"0": 1}
