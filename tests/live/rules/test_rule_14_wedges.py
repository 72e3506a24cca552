"""Rule 14: a setting that would lose decisions or block the query permanently is refused or mentioned in a warning.

Without this rule, retention deletes the ledger, and the next start finds an empty one; a batch that takes longer than its
transactions live is replayed forever; a decision above the record limit can never be written; a ledger that only grows takes
longer to read with each restart.
"""

from __future__ import annotations

import logging
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,
)

from tests.live.broker_changes import add_partitions, alter_topic
from tests.live.pipeline import Tasks, create_topic, opened
from tests.live.rules.schedules import Play, at, crash, die, playing, until
from tests.reader import committed
from twopc import batch_transaction
from twopc.codec import encode
from twopc.coordinator import Coordinator
from twopc.errors import CheckpointExpiredError, ConfigurationError, DecisionLogDamagedError
from twopc.files import LocalFiles
from twopc.records import Truncation
from twopc.settings import Settings
from twopc.sinks.kafka import decision_log
from twopc.sinks.kafka.decision_log import KafkaDecisionLog
from twopc.sinks.kafka.ledger_topic import DRIVER_PARTITION, MARKER_PARTITIONS, TRANSACTION_LOG, LedgerTopic
from twopc.sinks.kafka.reader import CommittedReader, Row, offsets
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService

SAFE = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


@pytest.fixture
def admin(kafka: KafkaService) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


# -- dangerous settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "effect"),
    [
        ("retention.ms", "604800000", "Kafka would delete decisions"),
        ("retention.bytes", "1000000", "Kafka would delete decisions"),
        ("cleanup.policy", "compact", "Kafka would delete decisions"),
        ("cleanup.policy", "compact,delete", "Kafka would delete decisions"),
        ("unclean.leader.election.enable", "true", "a stale leader could lose decisions"),
    ],
)
def test_a_ledger_that_could_lose_decisions_is_refused_because_of_its_setting(
    setting: str, value: str, effect: str, play: Play
) -> None:
    """Fails if ``LedgerTopic.require_safe`` does not check the setting."""
    create_topic(play.bootstrap_servers, play.sink.ledger, 1 + MARKER_PARTITIONS, {**SAFE, setting: value})
    engine = Tasks(play, [["a"]])
    with pytest.raises(ConfigurationError, match=rf"{play.sink.ledger} has .*{setting}={value}.*{effect}"):
        play.driver().process(play.batch(0), engine)
    assert engine.prepared == 0
    assert play._records() == []


def test_a_changed_setting_is_refused_at_the_start_and_the_running_query_continues(play: Play) -> None:
    """Fails if settings are only checked when the ledger is created, and not at each start."""
    healthy = play.driver()
    healthy.process(play.batch(0), Tasks(play, [["0"]]))
    alter_topic(play.bootstrap_servers, play.sink.ledger, {"retention.ms": "86400000"})
    with pytest.raises(ConfigurationError, match=r"retention\.ms=86400000"):
        play.driver().process(play.batch(1), Tasks(play, [["intruder"]]))
    alter_topic(play.bootstrap_servers, play.sink.ledger, {"retention.ms": "-1"})
    assert len(play.acquisitions()) == 1
    healthy.process(play.batch(1), Tasks(play, [["1"]]))
    assert play.visible() == {"0": 1, "1": 1}


def test_a_second_sinks_ledger_is_checked_before_the_first_one_is_acquired(kafka: KafkaService, tmp_path: Path) -> None:
    """Fails if ``KafkaCommitter.inspect`` leaves the check to `acquire`: the first sink's driver would be fenced."""
    tail = uuid.uuid4().hex[:10]
    with playing(kafka, tmp_path, name=f"a{tail}") as first, playing(kafka, tmp_path, name=f"b{tail}") as second:
        create_topic(
            kafka.bootstrap_servers, second.sink.ledger, 1 + MARKER_PARTITIONS, {**SAFE, "cleanup.policy": "compact"}
        )
        driver = Coordinator([first.sink, second.sink], LocalFiles(tmp_path / "twopc"))
        opened.append(driver)
        with pytest.raises(ConfigurationError, match=second.sink.ledger):
            driver.recover(first.batch(0))
        assert first.acquisitions() == []


def test_a_transaction_log_with_unclean_leaders_is_refused(play: Play) -> None:
    """Fails if ``require_safe`` only checks the ledger."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))  # the first transaction creates the transaction log
    setting = "unclean.leader.election.enable"
    alter_topic(play.bootstrap_servers, TRANSACTION_LOG, {setting: "true"})
    try:
        with pytest.raises(ConfigurationError, match=f"{TRANSACTION_LOG} has {setting}=true"):
            play.driver().process(play.batch(1), Tasks(play, [["1"]]))
    finally:
        alter_topic(play.bootstrap_servers, TRANSACTION_LOG, {setting: None})
    play.driver().process(play.batch(1), Tasks(play, [["1"]]))


def test_a_warning_about_a_single_copy_is_logged_only_below_min_insync_replicas_2(
    play: Play, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if the warning is missing, or always logged."""
    with caplog.at_level(logging.WARNING, "twopc.sinks.kafka.ledger_topic"):
        play.driver().recover(play.batch(0))
        warned = [text for text in caplog.messages if "min.insync.replicas" in text]
        assert any(text.startswith(f"{play.sink.ledger} has min.insync.replicas=1") for text in warned)
        caplog.clear()
        safe = create_topic(play.bootstrap_servers, f"{play.name}-safe", 2, {**SAFE, "min.insync.replicas": "2"})
        LedgerTopic(admin, safe, timeout_ms=10_000).require_safe()
    assert not any(text.startswith(safe) for text in caplog.messages)


def test_an_output_topic_that_may_lose_acknowledged_rows_causes_a_warning(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers alone know about such a loss: the transaction and its marker are intact."""
    setting = "unclean.leader.election.enable"
    alter_topic(play.bootstrap_servers, play.topic, {setting: "true"})
    with caplog.at_level(logging.WARNING, "twopc.sinks.kafka.ledger_topic"):
        play.driver().recover(play.batch(0))
    weak = f"the topic {play.topic} has min.insync.replicas=1, {setting}=true, so brokers may lose rows"
    assert any(text.startswith(weak) for text in caplog.messages)
    caplog.clear()
    alter_topic(play.bootstrap_servers, play.topic, {setting: None, "min.insync.replicas": "2"})
    with caplog.at_level(logging.WARNING, "twopc.sinks.kafka.ledger_topic"):
        play.driver().recover(play.batch(0))
    assert not any(text.startswith(f"the topic {play.topic}") for text in caplog.messages)


# -- decisions above the record limit ----------------------------------------------------------------------------------

LARGE = ("x" * 2_500_000,)


def frames(play: Play) -> int:
    """Records in partition 0, committed or not. Markers begin with a brace; the parts of a decision do not."""
    found = committed(play.bootstrap_servers, play.sink.ledger, isolation="read_uncommitted").elements()
    return sum(not value.startswith(("{", "barrier")) for value in found)


def test_a_decision_above_the_record_limit_is_written_in_parts_and_read_as_one(play: Play) -> None:
    """Fails if a record of any size is one frame, because broker and client would refuse a large one."""
    play.driver().process(play.batch(0, offsets=LARGE), Tasks(play, [["a"]]))
    assert frames(play) == 1 + 1 + 3  # acquisition, begin, the decision's parts
    assert [decision.offsets for decision in play.decisions()] == [LARGE]
    restarted, replay = play.driver(), Tasks(play, [["a"]])
    restarted.process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    restarted.process(play.batch(1), Tasks(play, [["b"]]))
    assert play.visible() == {"a": 1, "b": 1}


def test_decisions_are_written_in_smaller_parts_to_a_ledger_with_a_lower_record_limit(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Fails if parts have a fixed size, if a batch contains several, or if the options for rows apply to them."""
    options = {"kafka.message.max.bytes": "20000", "kafka.queue.buffering.max.kbytes": "100"}
    with playing(kafka, tmp_path, options=options) as play:
        create_topic(
            play.bootstrap_servers, play.sink.ledger, 1 + MARKER_PARTITIONS, {**SAFE, "max.message.bytes": "40000"}
        )
        play.driver().process(play.batch(0, offsets=("x" * 400_000,)), Tasks(play, [["a"]]))
        assert frames(play) == 1 + 1 + 11
        play.driver().process(play.batch(1), Tasks(play, [["b"]]))
        assert play.visible() == {"a": 1, "b": 1}


def test_parts_of_an_uncommitted_transaction_are_not_a_decision(play: Play) -> None:
    """Fails if each part has its own transaction: some parts would be visible after the crash."""
    with pytest.raises(InjectedFault), at("driver.deciding", die):
        play.driver().process(play.batch(0, offsets=LARGE), Tasks(play, [["a"]]))
    assert frames(play) == 1 + 1 + 3
    replay = Tasks(play, [["a"]])
    play.driver().process(play.batch(0), replay)
    assert replay.prepared == 1
    assert [decision.batch_id for decision in play.decisions()] == [0]
    assert play.visible() == {"a": 1}


def write_parts(play: Play, wanted: slice) -> None:
    """Write some parts of a decision for batch 1 to the ledger."""
    play.driver().process(play.batch(0), Tasks(play, [["a"]]))
    (decided,) = play.decisions()
    parts = encode(msgspec.structs.replace(decided, batch_id=1, offsets=("y" * 900,)), max_bytes=600)
    assert len(parts) > 2
    producer = Producer({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    for part in parts[wanted]:
        producer.produce(play.sink.ledger, part, partition=0)
    assert producer.flush(10) == 0


def test_a_decision_without_its_last_parts_is_ignored(play: Play) -> None:
    """All parts are in one transaction, so no reader has seen this decision. Fails if ``decode`` reports damage."""
    write_parts(play, slice(0, 2))
    engine = Tasks(play, [["b"]])
    play.driver().process(play.batch(1), engine)
    assert (engine.prepared, engine.evaluated) == (1, 0)
    assert play.visible() == {"a": 1, "b": 1}
    play.driver().process(play.batch(2), Tasks(play, [[]]))
    assert [decision.batch_id for decision in play.decisions()] == [0, 1, 2]


@pytest.mark.parametrize("wanted", [slice(1, None), slice(0, None, 2)], ids=["without the first", "without the second"])
def test_a_decision_without_its_first_or_second_part_counts_as_damage(wanted: slice, play: Play) -> None:
    """Fails if ``decode`` skips it."""
    write_parts(play, wanted)
    before = frames(play)
    engine = Tasks(play, [["b"]])
    with pytest.raises(DecisionLogDamagedError):
        play.driver().process(play.batch(1), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    assert frames(play) == before, "a start with a damaged log must not fence any driver"
    assert play.visible() == {"a": 1}


# -- batches that take too long ----------------------------------------------------------------------------------------


def test_a_batch_that_outlives_its_transactions_fails_once_with_an_error_that_mentions_the_setting(
    kafka: KafkaService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if ``confirm`` ignores the time that is left, or if its error is retriable."""
    with playing(kafka, tmp_path, options={"kafka.transaction.timeout.ms": "60000"}) as play:
        now = [0.0]
        monkeypatch.setattr(batch_transaction, "time", SimpleNamespace(monotonic=lambda: now[0]))
        engine = Tasks(play, [["a"]], between=lambda _: now.append(now.pop() + 46))
        with pytest.raises(CheckpointExpiredError, match=r"46\d{3} ms.*60000 ms.*kafka\.transaction\.timeout\.ms"):
            play.driver().process(play.batch(0), engine)
        assert engine.prepared == 1
        assert play.decisions() == []
        assert play.open_transactions() == ()  # swept, so readers do not wait for the timeout
        in_time = Tasks(play, [["a"]], between=lambda _: now.append(now.pop() + 44))
        play.driver().process(play.batch(0), in_time)
        assert play.visible() == {"a": 1}


# -- the output's partitions -------------------------------------------------------------------------------------------


def test_a_changed_partition_count_of_the_output_causes_a_warning(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """Fails if the count is not compared with that of the decision."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    with caplog.at_level(logging.WARNING, "twopc.sinks.kafka.committer"):
        play.driver().process(play.batch(1), Tasks(play, [["1"]]))
        assert not any("move to other partitions" in text for text in caplog.messages)
        add_partitions(play.bootstrap_servers, play.topic, 6)
        play.driver().process(play.batch(2), Tasks(play, [["2"]]))
        assert [text for text in caplog.messages if f"{play.topic} had 4 partitions and now has 6" in text]


# -- the ledger's size -------------------------------------------------------------------------------------------------

KEEP = Settings(keep_batches=2)


def starts(play: Play, admin: AdminClient) -> dict[int, int]:
    partitions = range(1 + MARKER_PARTITIONS)
    return offsets(admin, play.sink.ledger, partitions, OffsetSpec.earliest(), timeout_ms=10_000)


def test_the_ledger_is_truncated_below_the_kept_batches_and_a_restart_still_recovers(
    play: Play, admin: AdminClient
) -> None:
    """Fails if nothing is truncated, or too much: kept batches would be damaged or have a gap."""
    driver = play.driver(KEEP)
    sizes, kept = [], []
    for batch in range(11):
        driver.process(play.batch(batch), Tasks(play, [[f"{batch}"], [f"{batch}'"]]))
        sizes.append(len(play._records()))
        kept.append(len(play.decisions()))
    assert max(kept) <= 2 * KEEP.keep_batches
    assert min(kept[KEEP.keep_batches :]) >= KEEP.keep_batches
    assert max(sizes) <= 2 * KEEP.keep_batches + 3  # plus an acquisition, a begin or a truncation
    truncation = max(record.log_start for record in play._records() if isinstance(record, Truncation))
    found = starts(play, admin)
    assert found[0] == truncation > 0
    assert found[1] > 0
    assert found[2] > 0
    assert [found[partition] for partition in range(3, 1 + MARKER_PARTITIONS)] == [0] * 6  # no tasks, so no markers
    replay = Tasks(play, [["10"], ["10'"]])
    restarted = play.driver(KEEP)
    restarted.process(play.batch(10), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    restarted.process(play.batch(11), Tasks(play, [["11"]]))
    expected = {f"{batch}{mark}": 1 for batch in range(11) for mark in ("", "'")}
    assert play.visible() == {**expected, "11": 1}


@pytest.mark.parametrize("deletes", [True, False])
def test_a_start_reads_only_the_records_that_the_kept_batches_need_even_if_no_record_may_be_deleted(
    play: Play, monkeypatch: pytest.MonkeyPatch, *, deletes: bool
) -> None:
    """Fails if a start reads from the earliest record: without the right Delete, the amount grows every day."""
    monkeypatch.setattr(decision_log, "_PART", 8)
    if not deletes:
        monkeypatch.setattr(KafkaDecisionLog, "delete_before", lambda *_: None)
    read, really = [0], CommittedReader.rows

    def rows(reader: CommittedReader, topic: str, partition: int, *rest: Any, **more: Any) -> Iterator[Row]:
        for row in really(reader, topic, partition, *rest, **more):
            read[0] += partition == DRIVER_PARTITION
            yield row

    monkeypatch.setattr(CommittedReader, "rows", rows)
    driver = play.driver(KEEP)
    counts = []
    for batch in range(24):
        driver.process(play.batch(batch), Tasks(play, [[f"{batch}"]]))
        if batch % 8 == 7:
            driver, read[0] = play.driver(KEEP), 0
            driver.process(play.batch(batch), Tasks(play, [[f"{batch}"]]))
            counts.append(read[0])
    assert max(counts) <= 20  # two decisions and the records between and around them; the whole log would be 60 records
    assert play.visible() == {f"{batch}": 1 for batch in range(24)}


def test_kept_batches_are_still_proven_by_their_markers_after_a_truncation(play: Play) -> None:
    """Fails if ``forget`` deletes markers of kept batches: the restart would be blocked permanently."""
    driver = play.driver(Settings(keep_batches=1))
    for batch in range(3):
        driver.process(play.batch(batch), Tasks(play, [[f"{batch}"], [f"{batch}'"]]))
    for handle in play.decided(2):
        play.fence(handle.transactional_id)  # as a worker that reuses the id does; EndTxn proves nothing afterwards
    restarted, replay = play.driver(Settings(keep_batches=1)), Tasks(play, [["2"], ["2'"]])
    restarted.process(play.batch(2), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    crash(restarted, play, 3, [["lost"], ["in"]], "driver.decided")
    lost, committed_one = play.decided(3)
    play.fence(lost.transactional_id)
    assert until(lambda: play.end(committed_one, commit=True) == "NONE")
    play.driver(Settings(keep_batches=1)).process(play.batch(3), Tasks(play, [["lost"], ["in"]]))
    assert play.visible() == dict.fromkeys(("0", "0'", "1", "1'", "2", "2'", "lost", "in"), 1)


@pytest.mark.parametrize("dies_at", ["truncate", "forget"])
def test_a_crash_between_the_truncations_record_and_the_truncation_does_no_damage(
    dies_at: str, play: Play, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if reading requires that records below a recorded truncation are deleted, or that they still exist."""
    driver = play.driver(KEEP)
    for batch in range(3):
        driver.process(play.batch(batch), Tasks(play, [[f"{batch}"]]))
    calls = [0] if dies_at == "truncate" else [-1]

    def delete_before(ledger: KafkaDecisionLog, starts: dict[int, int]) -> None:
        if calls[0] == 0:
            die()
        calls[0] += 1
        really(ledger, starts)

    really = KafkaDecisionLog.delete_before
    with monkeypatch.context() as patched:
        patched.setattr(KafkaDecisionLog, "delete_before", delete_before)
        with pytest.raises(InjectedFault):
            driver.process(play.batch(3), Tasks(play, [["3"]]))
    assert (starts(play, admin)[0] == 0) == (dies_at == "truncate")
    restarted, replay = play.driver(KEEP), Tasks(play, [["3"]])
    restarted.process(play.batch(3), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    for batch in (4, 5, 6):
        restarted.process(play.batch(batch), Tasks(play, [[f"{batch}"]]))
    assert starts(play, admin)[0] > 0
    assert play.visible() == {f"{batch}": 1 for batch in range(7)}


def test_a_foreign_truncation_counts_as_damage(play: Play, admin: AdminClient) -> None:
    """Fails if ``fold`` does not compare the log's start with the recorded one: batch 0 would be duplicated."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    (where,) = admin.delete_records([TopicPartition(play.sink.ledger, 0, -1)]).values()
    where.result()
    engine = Tasks(play, [["0"]])
    with pytest.raises(DecisionLogDamagedError, match="but was truncated only up to 0"):
        play.driver().process(play.batch(0), engine)
    assert (engine.prepared, engine.evaluated) == (0, 0)
    assert play.visible() == {"0": 1}
