"""``twopc status`` of a checkpoint, a sink and a cluster on a real broker, and its responses to bad input."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import ask, command, spark_file, spark_files
from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import at, crash, playing
from tests.live.services import KafkaService
from twopc.attempt import Claim, Evidence
from twopc.files import LocalFiles
from twopc.integration.operate import observe as observe_module
from twopc.override import Overrides
from twopc.registers import RegisterLog
from twopc.sealed import with_check
from twopc.settings import Settings
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.live.rules.schedules import Play
    from twopc.integration.services.kafka import LocalKafka
    from twopc.sinks.kafka.reports import Description


def anchors(facts: dict[str, object], play: Play) -> list[str]:
    sinks: object = facts["sinks"]
    assert isinstance(sinks, list)
    [sink] = [one for one in sinks if one["sink"] == play.name]
    return [one["runbook"].partition("#")[2] for one in sink["advice"]]


def test_a_running_query_is_healthy_and_continues(play: Play) -> None:
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))
    found = ask(play, "status", play.name, "--json")
    assert found.status == 0 and found.facts["ok"]
    [sink] = found.facts["sinks"]
    assert (sink["query_id"], sink["last_decided"], sink["last_committed"]) == (play.query_id, 0, 0)
    assert sink["producer_id"] >= 0 and sink["driver"] and sink["driver_epoch"] >= 0
    assert (sink["transactions"], sink["held_back"]) == ([], [])
    driver.process(play.batch(1), Tasks(play, ROWS))  # no other driver has fenced this one
    assert play.visible() == VISIBLE + VISIBLE


@pytest.mark.whole
def test_a_query_that_writes_batch_after_batch_never_needs_an_operator(play: Play) -> None:
    """Each check happens at some moment during a batch. A commit in progress must not alarm an operator."""
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))
    checkpoint = spark_files(play, finished=0)

    def run() -> None:
        for batch in range(1, 40):
            spark_file(play, "offsets", batch)
            driver.process(play.batch(batch), Tasks(play, ROWS))
            spark_file(play, "commits", batch)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        looks = 0
        while not running.done():
            named = (play.name, "--checkpoint") if looks % 2 else ()
            found = ask(play, "status", *named, str(checkpoint), "--json")
            assert found.status == 0, found.facts["sinks"][0]["advice"]
            looks += 1
        running.result()
    assert looks


def test_status_waits_for_a_commit_in_progress(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe_module, "_COMMIT_S", 30.0)
    driver, seen, looks = play.driver(), threading.Semaphore(0), []
    really = TransactionClient.describe

    def describe(self: TransactionClient, ids: Sequence[str]) -> dict[str, Description]:
        found = really(self, ids)
        if threading.current_thread() is not threading.main_thread():
            seen.release()
        return found

    def look() -> None:
        """The driver continues when the command has seen its open transactions a few times."""
        looks.append(pool.submit(observe_module.observe, play.sink))
        assert all(seen.acquire(timeout=30) for _ in range(4))

    monkeypatch.setattr(TransactionClient, "describe", describe)
    with ThreadPoolExecutor(1) as pool, at("driver.decided", look):
        driver.process(play.batch(0), Tasks(play, ROWS))
    state = looks[0].result()
    assert {proof.evidence for proof in state.proofs} == {Evidence.COMMITTED}
    assert state.transactions == ()


def test_a_dead_query_with_an_uncommitted_decision_needs_an_operator(play: Play) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    crash(play.driver(), play, 1, ROWS, "driver.decided")
    checkpoint = spark_files(play, finished=0, planned=1)
    found = ask(play, "status", str(checkpoint), "--json")
    assert found.status == 1
    [sink] = found.facts["sinks"]
    assert (sink["last_decided"], sink["last_committed"]) == (1, 0)
    assert anchors(found.facts, play) == ["decided-and-not-committed"]
    held = {(one["topic"], one["transactional_id"]) for one in sink["held_back"]}
    assert held >= {(play.topic, handle.transactional_id) for handle in play.decided(1)}
    assert found.facts["checkpoint"]["last_planned"] == 1
    shown = ask(play, "status", str(checkpoint))
    assert "readers are stuck at offset" in shown.out and "start it now" in shown.out


def test_undecided_transactions_are_distinguished_from_decided_ones(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.confirmed")
    found = ask(play, "status", play.name, "--json")
    assert found.status == 0
    assert anchors(found.facts, play) == ["a-batch-is-being-written"]


def test_a_foreign_transaction_that_holds_readers_back_is_reported(play: Play) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    foreign = play.open_foreign(f"{play.name}-foreign", play.topic, 0)
    found = ask(play, "status", play.name, "--json")
    assert anchors(found.facts, play) == ["a-foreign-transaction-holds-readers-back"]
    [held] = found.facts["sinks"][0]["held_back"]
    assert (held["partition"], held["transactional_id"]) == (0, f"{play.name}-foreign")
    foreign.abort_transaction(10)


def test_an_older_copy_of_the_checkpoint_is_detected(play: Play) -> None:
    driver = play.driver()
    for batch in range(3):
        driver.process(play.batch(batch), Tasks(play, ROWS))
    found = ask(play, "status", play.name, "--checkpoint", str(spark_files(play, finished=1)), "--json")
    assert (found.status, anchors(found.facts, play)) == (1, ["the-start-is-refused"])


def test_a_lost_transaction_is_reported(play: Play) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    for handle in play.decided(0):
        play.fence(handle.transactional_id)
    found = ask(play, "status", play.name, "--json")
    assert (found.status, anchors(found.facts, play)) == (1, ["a-decided-transaction-is-lost"])


def test_status_watches_a_sink_for_the_given_time(play: Play) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    found = ask(play, "status", play.name, "--watch", "--interval", "0.1", "--seconds", "0.1", "--json")
    looks = [json.loads(line) for line in found.out.splitlines()]
    assert looks and all(look["ok"] for look in looks)
    shown = ask(play, "status", play.name, "--watch", "--interval", "0.1", "--seconds", "0.1")
    assert "last decided batch 0" in shown.out and "\x1b" not in shown.out


def test_an_unreadable_sink_of_a_cluster_does_not_hide_its_other_sinks(fresh_kafka: LocalKafka, tmp_path: Path) -> None:
    kafka = KafkaService(fresh_kafka.bootstrap_servers)
    with playing(kafka, tmp_path / "one") as one, playing(kafka, tmp_path / "other") as other:
        one.driver().process(one.batch(0), Tasks(one, ROWS))
        crash(other.driver(), other, 0, ROWS, "driver.decided")
        create_topic(fresh_kafka.bootstrap_servers, "twopc-ledger-empty", 1)
        found = ask(one, "status", "--json")
        assert found.status == 1
        assert {sink["sink"] for sink in found.facts["sinks"]} == {one.name, other.name, "empty"}
        assert anchors(found.facts, other) == ["decided-and-not-committed"]
        assert anchors(found.facts, one) == ["healthy"]
        listed = ask(one, "transactions", "list", "--json")
        assert {sink["sink"]: len(sink["transactions"]) for sink in listed.facts} == {
            one.name: 0,
            other.name: 2,
            "empty": 0,
        }


def test_a_checkpoint_alone_says_what_spark_has_done(play: Play) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    found = command("status", str(spark_files(play, finished=0)), "--json")
    assert found.status == 0
    assert found.facts["checkpoint"]["decision_log"] == play.sink.ledger
    assert "add --bootstrap-servers" in found.facts["advice"][0]["action"]


def test_idle_means_that_the_ledger_was_examined_and_shows_the_last_batch(play: Play) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    alone = command("status", str(spark_files(play, finished=0)), "--idle")
    assert alone.status == 1 and "this check did not examine them" in alone.out
    assert ask(play, "status", str(play.root), "--idle").status == 0
    crash(play.driver(), play, 1, ROWS, "driver.confirmed")  # undecided: only --idle exits with 1
    assert ask(play, "status", str(spark_files(play, finished=0, planned=1))).status == 0
    assert ask(play, "status", str(play.root), "--idle").status == 1


def test_idle_needs_a_checkpoint(play: Play) -> None:
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    found = ask(play, "status", play.name, "--idle")
    assert found.status == 2 and "needs the query's checkpoint" in found.error


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The status of a query whose decisions are in its checkpoint."""
    (tmp_path / "metadata").write_text('{"id":"q"}')
    log = RegisterLog(LocalFiles(tmp_path / "twopc"))
    log.acquire(Claim(query_id="q", run="r", deciding_log=log.name))
    bound = {"format": 1, "log": log.name, "log_identity": log.identity(), "sinks": {"s": {}}}
    (tmp_path / "twopc" / "binding-000001.json").write_bytes(with_check(json.dumps(bound).encode()))
    return tmp_path


def test_decisions_in_the_checkpoint_are_read(checkpoint: Path) -> None:
    found = command("status", str(checkpoint), "--json")
    assert (found.status, found.facts["checkpoint"]["decision_log"]) == (0, "registers")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("metadata", None, "is not a checkpoint of a streaming query"),
        ("metadata", "torn", "The file is torn or was altered"),
        ("twopc/binding-000001.json", '{"format":', "Restore the file from a backup"),
        (
            "twopc/binding-000001.json",
            with_check(b'{"format":9,"log":"","log_identity":"","sinks":{}}').decode(),
            "Use the version that wrote the file",
        ),
        (
            "twopc/registers/00000000000000000000",
            with_check(b'{"format":"twopc-register/9"}').decode(),
            "Use the version that wrote the file",
        ),
        ("twopc/registers/00000000000000000000", "twopc-register/1 x\n", "is torn or was altered"),
    ],
)
def test_bad_input_causes_a_one_line_error(checkpoint: Path, name: str, text: str | None, said: str) -> None:
    file = checkpoint / name
    file.unlink() if text is None else file.write_text(text)
    found = command("status", str(checkpoint))
    assert found.status in {1, 2}
    assert said in (found.error or found.out)
    assert found.error.count("\n") <= 1


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    found = command("status", str(tmp_path / "none"))
    assert (found.status, found.error.count("\n")) == (2, 1)
    assert "does not exist" in found.error
    assert command("status").status == 2


def test_an_unreachable_broker_causes_a_one_line_error() -> None:
    found = command("status", "s", "--bootstrap-servers", "127.0.0.1:1", "--timeout", "2")
    assert found.status == 2 and "no Kafka broker responds" in found.error


def test_a_query_that_lost_its_checkpoint_continues_at_the_offsets_of_the_last_decision(
    play: Play, tmp_path: Path
) -> None:
    """The runbook's "Lost checkpoint", step by step. The ledger is all that is left of the query."""
    ends = ['{"in":{"0":3}}', 'clicks:{"in":{"0":5}}']  # the second source has a name
    driver = play.driver()
    driver.process(play.batch(0, offsets=('{"in":{"0":1}}', ends[1])), Tasks(play, ROWS))
    play.batch(1, offsets=tuple(ends))
    crash(driver, play, 1, ROWS, "driver.decided")
    play.forget_worker()
    shutil.rmtree(play.root)

    assert ask(play, "transactions", "commit", play.name, "--yes").status == 0
    [sink] = ask(play, "status", play.name, "--json").facts["sinks"]
    checked = ask(play, "verify", "--sink", play.name, "--json")
    assert sink["last_offsets"] == checked.facts["last_offsets"] == ends
    assert ends[0] in ask(play, "status", play.name).out

    old, play.query_id, play.root, play.offsets = play.query_id, f"new-{play.name}", tmp_path / "new", {}
    restarted = play.driver(Settings(overrides=Overrides(end_query_ids={old})))
    restarted.process(play.batch(0, offsets=('{"in":{"0":6}}', ends[1])), Tasks(play, ROWS))
    assert play.visible() == VISIBLE + VISIBLE + VISIBLE
