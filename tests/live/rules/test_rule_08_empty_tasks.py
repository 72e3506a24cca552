"""Rule 8: an empty task opens no transaction and has no handle; it reports zero rows and its checksum.

Without this rule, an empty task also receives a transaction. librdkafka's ``begin_transaction()`` sends the broker
nothing, so the coordinator reports Empty, never Ongoing, and a batch with one empty task can never be decided.
"""

from __future__ import annotations

from tests.live.pipeline import Tasks, record_batch
from tests.live.rules.schedules import Play, at, work_of, writer_of
from tests.reader import committed


def markers(play: Play) -> int:
    everything = committed(play.bootstrap_servers, play.sink.ledger, isolation="read_uncommitted").total()
    return everything - len(play._records())


def test_only_tasks_with_rows_have_a_transaction_and_a_handle(play: Play) -> None:
    """Fails if ``SinkWriter.snapshot_state`` begins and prepares an EMPTY transaction, which then has a marker."""
    seen: list[tuple[str, ...]] = []
    with at("driver.prepared", lambda: seen.append(play.open_transactions())):
        play.driver().process(play.batch(0), Tasks(play, [[], ["a", "b"], [], ["c"], []]))
    (decision,) = play.decisions()
    assert [(task.partition, task.rows, len(task.handles)) for task in decision.tasks] == [
        (0, 0, 0),
        (1, 2, 1),
        (2, 0, 0),
        (3, 1, 1),
        (4, 0, 0),
    ]
    assert [task.checksum for task in decision.tasks if task.rows == 0] == [0, 0, 0]
    assert seen == [tuple(sorted(handle.transactional_id for handle in play.decided(0)))]
    assert markers(play) == 2
    assert play.visible() == {"a": 1, "b": 1, "c": 1}


def test_a_batch_of_empty_tasks_leads_to_one_decision_without_handles(play: Play) -> None:
    """Fails as above, or if a batch without handles is not decided: batch 1 would then follow a gap."""
    driver, empty = play.driver(), Tasks(play, [[], [], []])
    seen: list[tuple[str, ...]] = []
    with at("driver.prepared", lambda: seen.append(play.open_transactions())):
        driver.process(play.batch(0), empty)
    assert seen == [()]
    assert [[task.handles for task in decision.tasks] for decision in play.decisions()] == [[{}, {}, {}]]
    assert markers(play) == 0
    driver.process(play.batch(1), Tasks(play, [["a"], []]))
    assert empty.prepared == 1
    assert [decision.batch_id for decision in play.decisions()] == [0, 1]
    assert play.visible() == {"a": 1}


def test_a_batch_without_tasks_is_decided_and_a_restart_finds_it_complete(play: Play) -> None:
    """Fails if a batch without handles is not recorded: the restart would prepare it again."""
    play.driver().process(play.batch(0), Tasks(play, []))
    restarted, again = play.driver(), Tasks(play, [])
    restarted.process(play.batch(0), again)
    assert (again.prepared, again.evaluated) == (0, 1)
    restarted.process(play.batch(1), Tasks(play, [["a"]]))
    assert [(decision.batch_id, len(decision.tasks)) for decision in play.decisions()] == [(0, 0), (1, 1)]
    assert play.visible() == {"a": 1}


def test_record_batches_without_rows_open_no_transaction(play: Play) -> None:
    """Fails if ``SinkWriter.write_rows`` ignores ``num_rows``; Arrow does produce such batches."""
    play.driver().process(play.batch(0), Tasks(play, [[]]))  # creates the ledger
    writer = writer_of(play, work_of(play, 1, driver_epoch=0), 0)
    for _ in range(3):
        writer.write_rows(record_batch([]))
    assert writer.snapshot_state(1) is None
    writer.hand_over()
    writer.close()
    assert markers(play) == 0
    assert play.open_transactions() == ()
