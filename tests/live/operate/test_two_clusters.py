"""Two Kafka sinks of one query, on two clusters: the ledger of the first sink contains the decisions for both.

The second sink's cluster contains no decisions. An operator must not be told that they are lost, because then a query
that only needs a start stays down while its decided transactions expire.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from tests.live.broker_changes import delete_topic
from tests.live.operate.support import Said, ask, command, spark_files
from tests.live.pipeline import Tasks, opened
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, at, die, playing
from tests.live.services import KafkaService
from tests.live.stores import named
from twopc.coordinator import Coordinator
from twopc.files import LocalFiles
from twopc.integration.services.kafka import LocalKafka
from twopc.records import Acquired
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.attempt import Claim
    from twopc.batch import Batch

_BY_HAND: Final = ("--yes", "--force", "--reason", "the host is gone")
_SINKS: Final = ("--sinks", "tests.live.stores.named:SINKS")


@pytest.fixture(scope="module")
def other_kafka() -> Iterator[KafkaService]:
    """A second cluster."""
    with LocalKafka() as kafka:
        yield KafkaService(kafka.bootstrap_servers, kafka)


class Pair:
    """A query with two sinks and one checkpoint. The first sink's ledger contains the decisions."""

    def __init__(self, first: Play, second: Play, *, ledger: str | None = None) -> None:
        second.query_id = first.query_id
        self.first, self.second = first, second
        for play in (first, second):
            play.sink = dataclasses.replace(play.sink, ledger_topic=ledger)
        named.SINKS[:] = [first.sink, second.sink]

    def process(self, batch: int) -> None:
        self._driver().process(self._batch(batch), self._tasks())

    def crash(self, batch: int, point: str) -> None:
        driver = self._driver()
        with pytest.raises(InjectedFault), at(point, die):
            driver.process(self._batch(batch), self._tasks())
        for play in (self.first, self.second):
            play.forget_worker()

    def checkpoint(self, *, finished: int, planned: int | None = None) -> str:
        return str(spark_files(self.first, finished=finished, planned=planned))

    def visible(self) -> list[Counter[str]]:
        return [self.first.visible(), self.second.visible()]

    def _batch(self, batch: int) -> Batch:
        return self.first.batch(batch, offsets=(f'{{"in":{{"0":{batch}}}}}',))  # as in Spark's files

    def _driver(self) -> Coordinator:
        sinks = [self.first.sink, self.second.sink]
        opened.append(Coordinator(sinks, LocalFiles(self.first.root / "twopc")))
        return opened[-1]

    def _tasks(self) -> Tasks:
        return Tasks(self.first, ROWS, sinks=[self.first.sink, self.second.sink])


@pytest.fixture
def pair(kafka: KafkaService, other_kafka: KafkaService, tmp_path: Path) -> Iterator[Pair]:
    yield from pair_on(kafka, other_kafka, tmp_path)


def pair_on(one: KafkaService, other: KafkaService, root: Path, *, ledger: str | None = None) -> Iterator[Pair]:
    tail = uuid.uuid4().hex[:10]
    with (
        playing(one, root / "checkpoint", name=f"a{tail}") as first,
        playing(other, root / "checkpoint", name=f"b{tail}") as second,
    ):
        yield Pair(first, second, ledger=ledger)


def verify(play: Play, *words: str) -> Said:
    return ask(play, "verify", "--sink", play.name, *words)


def text_of(said: Said) -> str:
    return " ".join((said.out + said.error).split())


def require_no_alarm(said: Said) -> None:
    """Nothing is damaged, so no operator may be told to leave the query down."""
    assert "damaged:" not in text_of(said) and "not start the query" not in text_of(said), said
    assert "ledger_damaged" not in text_of(said), said


@pytest.mark.whole
def test_a_healthy_query_on_two_clusters_raises_no_alarm(pair: Pair) -> None:
    first, second = pair.first, pair.second
    pair.process(0)
    pair.process(1)
    checkpoint = pair.checkpoint(finished=1)

    alone = ask(second, "status", second.name)
    assert alone.status == 0
    assert f"the decisions of sink {second.name!r} are in {first.sink.ledger}, on cluster" in text_of(alone)
    for play, other in ((first, second), (second, first)):
        half = ask(play, "status", checkpoint)
        assert half.status == 0 and f"not examined: sink {other.name!r} is on cluster" in text_of(half), half
        require_no_alarm(half)
    whole = command("status", checkpoint, *_SINKS, "--timeout", "20", "--json")
    assert whole.status == 0
    assert [one["last_committed"] for one in whole.facts["sinks"]] == [1, 1]

    assert verify(first, "--checkpoint", checkpoint).status == 0
    unread = verify(second)
    assert unread.status == 2 and "--sinks" in unread.error
    compared = verify(second, "--checkpoint", checkpoint, *_SINKS, "--json")
    assert compared.status == 0 and (compared.facts["transactions"], compared.facts["visible"]) == (4, 4)

    for said in (alone, unread, compared, ask(second, "transactions", "list", second.name)):
        require_no_alarm(said)
    assert ask(second, "transactions", "prove", second.name).status == 2
    for words in (("transactions", "list"), ("transactions", "prove"), ("resolve",)):
        assert command(*words, second.name, *_SINKS).status == 0
        assert command(*words, checkpoint, *_SINKS).status == 0
        half = ask(first, *words, checkpoint)
        assert half.status == 2 and f"sink {second.name!r} is on cluster" in half.error


@pytest.mark.whole
def test_transactions_of_a_driver_that_died_before_the_commit_can_be_committed_by_hand(pair: Pair) -> None:
    first, second = pair.first, pair.second
    pair.crash(0, "driver.decided")
    checkpoint = pair.checkpoint(finished=-1, planned=0)

    alone = ask(second, "status", second.name)
    assert alone.status == 1 and "If the query is not running, start it" in text_of(alone)
    require_no_alarm(alone)
    listed = ask(second, "transactions", "list", second.name, "--json")
    assert listed.status == 1 and {one["decision"] for one in listed.facts[0]["transactions"]} == {"unjudged"}
    for words in (("transactions", "prove"), ("transactions", "commit", "--yes"), ("resolve", "--yes")):
        said = ask(second, *words, second.name)
        assert said.status == 2 and "--sinks" in said.error
        require_no_alarm(said)
    assert verify(second).status == 2
    refused = ask(second, "transactions", "abort", second.name, *_BY_HAND)
    assert refused.status == 3 and "its rows are lost" in refused.error and "--without-decisions" in refused.error
    assert len(second.open_transactions()) == 2

    whole = command("status", checkpoint, *_SINKS, "--json")
    assert whole.status == 1
    for sink in whole.facts["sinks"]:
        assert {one["decision"] for one in sink["transactions"]} == {"decided"}
    found = verify(second, *_SINKS, "--json")
    assert found.status == 0 and {one["kind"] for one in found.facts["findings"]} >= {"decided_open"}
    refused = command("transactions", "abort", second.name, *second.open_transactions(), *_SINKS, *_BY_HAND)
    assert refused.status == 3 and "must not be aborted: the decision for batch 0" in refused.error

    assert command("transactions", "commit", second.name, *_SINKS, "--yes").status == 0
    assert pair.visible() == [Counter(), VISIBLE]
    assert command("resolve", first.name, *_SINKS, "--yes").status == 0
    assert pair.visible() == [VISIBLE, VISIBLE]
    pair.process(1)
    assert pair.visible() == [VISIBLE + VISIBLE] * 2


@pytest.mark.whole
def test_a_refused_abort_says_which_sink_can_fence_the_driver_that_may_still_decide(pair: Pair) -> None:
    pair.crash(0, "driver.confirmed")
    refused = command("transactions", "abort", pair.second.name, *_SINKS, *_BY_HAND)
    assert refused.status == 3 and "only that ledger's sink can fence the driver" in refused.error
    assert len(pair.second.open_transactions()) == 2


@pytest.mark.whole
def test_an_operator_can_abort_with_an_option_that_accepts_missing_decisions(pair: Pair) -> None:
    pair.crash(0, "driver.confirmed")
    second = pair.second
    done = ask(second, "transactions", "abort", second.name, *_BY_HAND, "--without-decisions")
    assert done.status == 0, done
    assert second.open_transactions() == ()


@pytest.mark.whole
def test_a_sink_bound_to_another_cluster_is_not_examined_on_this_cluster(pair: Pair) -> None:
    """The checkpoint says which cluster a sink is on."""
    pair.process(0)
    checkpoint = pair.checkpoint(finished=0)
    said = ask(pair.first, "status", pair.second.name, "--checkpoint", checkpoint)
    assert said.status == 2 and f"sink {pair.second.name!r} is on cluster" in said.error
    taken = ask(pair.first, "savepoint", "create", checkpoint, str(pair.first.root.parent / "savepoints"))
    assert taken.status == 0, taken


@pytest.mark.whole
def test_ledgers_with_the_same_name_on_two_clusters_are_told_apart(
    kafka: KafkaService, other_kafka: KafkaService, tmp_path: Path
) -> None:
    """The second sink's own ledger contains no decision, and must not be mistaken for the log that does."""
    for pair in pair_on(kafka, other_kafka, tmp_path, ledger=f"ledger-{uuid.uuid4().hex}"):
        pair.crash(0, "driver.decided")
        second, ledger = pair.second, ("--ledger-topic", pair.second.sink.ledger)
        refused = ask(second, "transactions", "abort", second.name, *ledger, *_BY_HAND)
        assert refused.status == 3, refused
        assert len(second.open_transactions()) == 2
        assert command("transactions", "commit", second.name, *_SINKS, "--yes").status == 0
        assert second.visible() == VISIBLE


@pytest.mark.whole
def test_a_deleted_ledger_on_the_other_cluster_is_reported_as_damage(pair: Pair) -> None:
    require_damage(pair, *_SINKS)


def test_a_deleted_ledger_on_the_same_cluster_is_reported_as_damage(kafka: KafkaService, tmp_path: Path) -> None:
    """The sink's own ledger says on which cluster the decisions are, so the command knows that they are lost."""
    for pair in pair_on(kafka, kafka, tmp_path):
        require_damage(pair)


def require_damage(pair: Pair, *words: str) -> None:
    pair.process(0)
    checkpoint = pair.checkpoint(finished=0)
    delete_topic(pair.first.bootstrap_servers, pair.first.sink.ledger)
    for what in (pair.second.name, checkpoint):
        said = ask(pair.second, "status", what, *words)
        assert said.status == 1 and "the decision log is damaged" in text_of(said), said
        assert "Do not start the query" in text_of(said)
    damaged = verify(pair.second, *words, "--json")
    assert damaged.status == 1 and [one["kind"] for one in damaged.facts["findings"]] == ["ledger_damaged"]


@pytest.mark.whole
def test_the_checkpoint_names_the_cluster_that_an_older_version_did_not_record(
    kafka: KafkaService, other_kafka: KafkaService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Acquired.by_this_process

    def older(claim: Claim, at_ms: int, *, sink: str = "") -> Acquired:
        return record(dataclasses.replace(claim, deciding_cluster=""), at_ms, sink=sink)

    monkeypatch.setattr(Acquired, "by_this_process", older)
    for number, other in enumerate((other_kafka, kafka)):
        for pair in pair_on(kafka, other, tmp_path / str(number)):
            pair.process(0)
            second, checkpoint = pair.second, ("--checkpoint", pair.checkpoint(finished=0))
            is_lost = other is kafka
            if is_lost:
                delete_topic(pair.first.bootstrap_servers, pair.first.sink.ledger)
            unsure = ask(second, "status", second.name)
            assert unsure.status == 0 and "or this topic was deleted" in text_of(unsure)
            assert verify(second).status == 2
            sure = ask(second, "status", second.name, *checkpoint)
            words = "the decision log is damaged" if is_lost else f"{pair.first.sink.ledger}, on cluster"
            assert sure.status == int(is_lost) and words in text_of(sure), sure
            assert verify(second, *checkpoint).status == (1 if is_lost else 2)


@pytest.mark.whole
def test_resolve_judges_a_batch_across_all_sinks_as_the_next_start_does(kafka: KafkaService, tmp_path: Path) -> None:
    """One sink's transactions are lost and the other's are visible, so the batch is repaired and not written again."""
    for pair in pair_on(kafka, kafka, tmp_path):
        first, second = pair.first, pair.second
        pair.crash(0, "driver.decided")
        assert ask(first, "transactions", "commit", first.name, "--yes").status == 0
        for transactional_id in second.open_transactions():
            second.fence(transactional_id)
        checkpoint = pair.checkpoint(finished=-1, planned=0)
        for words in ((checkpoint,), (second.name, "--checkpoint", checkpoint)):
            found = ask(second, "resolve", *words, "--json")
            assert {one["case"] for one in found.facts} == {"some lost"}, found
            assert found.status == 1
        alone = ask(second, "resolve", second.name)
        assert alone.status == 1 and f"also has transactions in {first.name}" in text_of(alone), alone
        pair.process(0)
        assert first.plans() == ["write"]  # the driver did as predicted: it did not decide the batch again
        assert pair.visible() == [VISIBLE, VISIBLE]
