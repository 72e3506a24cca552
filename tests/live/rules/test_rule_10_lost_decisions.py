"""Rule 10, if the ledger has lost its newest decisions: the markers prove that these batches are visible.

Losing acknowledged records is outside the promise (``docs/guarantees.md``). But a start must notice it, because the batches
would otherwise be written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from tests.live.broker_changes import admin_of
from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.schedules import Play, crash
from twopc.errors import RefusedStartError
from twopc.override import Overrides, ResumeAt
from twopc.records import Decision
from twopc.settings import Settings
from twopc.sinks.kafka.decision_log import KafkaDecisionLog
from twopc.sinks.kafka.reader import CommittedReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twopc.records import LogEntry


def is_lost_decision(error: RefusedStartError) -> bool:
    return error.case == "lost decision"


def lose(monkeypatch: pytest.MonkeyPatch, *batches: int) -> None:
    """Read partition 0 as if it had lost the decisions for these batches. The markers stay."""
    really: Callable[..., Iterator[LogEntry]] = KafkaDecisionLog._entries

    def left(log: KafkaDecisionLog, start: int, until: int | None, *, whoever: bool) -> Iterator[LogEntry]:
        for entry in really(log, start, until, whoever=whoever):
            if not isinstance(entry.record, Decision) or entry.record.batch_id not in batches:
                yield entry

    monkeypatch.setattr(KafkaDecisionLog, "_entries", left)


def rows(batch: int) -> list[list[str]]:
    return [[f"{batch}a"], [f"{batch}b"]]


def run(play: Play, *batches: int, resume_at: int | None = None) -> Tasks:
    """Run batches in a new driver. Return the engine of the last one."""
    overrides = Overrides(resume_at=None if resume_at is None else ResumeAt(resume_at, play.query_id))
    driver = play.driver(Settings(overrides=overrides))
    for batch in batches:
        engine = Tasks(play, rows(batch))
        driver.process(play.batch(batch), engine)
    return engine


def shows(play: Play, *batches: int) -> bool:
    return play.visible() == {row: 1 for batch in batches for task in rows(batch) for row in task}


def test_a_batch_whose_decision_the_ledger_lost_is_not_written_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has not recorded batch 2, so it runs the batch again. Fails with doubled rows if the markers are not read."""
    run(play, 0, 1, 2)
    lose(monkeypatch, 2)
    for _ in range(2):
        with pytest.raises(RefusedStartError, match=rf"ResumeAt\(3, '{play.query_id}'\)\.", check=is_lost_decision):
            run(play, 2)
    assert shows(play, 0, 1, 2)
    assert run(play, 2, resume_at=3).prepared == 0
    monkeypatch.undo()  # a lost record stays lost, but a later begin record hides it anyway
    run(play, 2, 3)
    assert shows(play, 0, 1, 2, 3)


def test_a_gap_whose_decisions_the_ledger_lost_is_not_written_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has recorded batches 1 and 2. Fails with the advice to run them again if the gap is judged by the ledger alone."""
    run(play, 0, 1, 2)
    lose(monkeypatch, 1, 2)
    refusal = rf"decisions for batches 1 to 2\..*ResumeAt\(3, '{play.query_id}'\)\."
    with pytest.raises(RefusedStartError, match=refusal, check=is_lost_decision):
        run(play, 3)
    run(play, 3, resume_at=3)
    assert shows(play, 0, 1, 2, 3)


def test_a_marker_behind_an_open_transaction_is_noticed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver died after one of two commits. Fails if the markers are read only before the sweep of this start."""
    config = {"retention.ms": "-1", "retention.bytes": "-1"}
    create_topic(play.bootstrap_servers, play.sink.ledger, partitions=2, config=config)
    run(play, 0)
    crash(play.driver(), play, 1, rows(1), "driver.decided")
    first, second = play.decided(1)
    assert play.end(second, commit=True) == "NONE"
    assert first.transactional_id in play.open_transactions()
    lose(monkeypatch, 1)
    with pytest.raises(RefusedStartError, check=is_lost_decision):
        run(play, 1)
    assert play.visible() == {"0a": 1, "0b": 1, "1b": 1}


def test_a_restart_reads_only_the_markers_since_the_last_decision(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    run(play, *range(10))
    read: list[tuple[int, int]] = []
    really = CommittedReader.rows

    def counting(reader: CommittedReader, topic: str, partition: int, *arguments: object, **named: object) -> object:
        for row in really(reader, topic, partition, *arguments, **named):  # type: ignore[arg-type]
            read.append((partition, row.offset))
            yield row

    monkeypatch.setattr(CommittedReader, "rows", counting)
    run(play, 10)
    assert 0 < len([partition for partition, _ in read if partition > 0]) <= 2


def test_lost_or_deleted_markers_stop_no_start(play: Play) -> None:
    """They reveal nothing, because all copies of the checkpoint use the same ledger."""
    run(play, 0, 1)
    markers = [TopicPartition(play.sink.ledger, partition, OFFSET_END) for partition in range(1, 9)]
    admin = admin_of(play.bootstrap_servers)
    for deleted in admin.delete_records(markers).values():
        deleted.result()
    run(play, 1, 2)
    assert shows(play, 0, 1, 2)
