"""Rule 7: if anything stops a batch between its first prepared row and its decision, none of its transactions stays open.

Without this rule, the rows of an attempt that can no longer be decided hold back every reader of the output until the next
start, or until the attempt's transactions time out. Transactions that may already have been decided are spared (rule
12).
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE, WithOrphan
from twopc import batch_transaction, binding
from twopc.binding import Binding
from twopc.driver_run import DriverRun
from twopc.errors import BadRecordError, ConfigurationError, DecisionInDoubtError, FencedError, RetriableError
from twopc.participants import Participants
from twopc.pending import Pending
from twopc.sinks.kafka import decision_log, driver_producer
from twopc.sinks.kafka.decision_log import KafkaDecisionLog
from twopc.sinks.kafka.reader import offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.live.rules.schedules import Play
    from twopc.records import Record

#: The calls and crash points of a batch between its rows and its decision.
CALLS: tuple[tuple[object, str], ...] = (
    (Pending, "enter"),
    (batch_transaction, "crash_point"),
    (Pending, "prepared"),
    (Participants, "decode"),
    (Participants, "confirm"),
    (Binding, "bind"),
    (os, "link"),
    (os, "fsync"),
    (binding, "crash_point"),
    (DriverRun, "append"),
)
#: Each failure raises a new error, because an error that stays alive keeps its driver alive, and so its producer.
ERRORS: tuple[Callable[[], BaseException], ...] = (
    partial(OSError, 95, os.strerror(95)),
    KeyboardInterrupt,
    partial(AssertionError, "a bug"),
    partial(ConfigurationError, "a setting"),
    partial(RetriableError, "a broker was away"),
)


def failing(error: Callable[[], BaseException]) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error()

    return fail


def require_nothing_open(play: Play) -> None:
    """Nothing is open, and every partition's last stable offset is its end: no reader is held back."""
    assert play.open_transactions() == ()
    admin = AdminClient({"bootstrap.servers": play.bootstrap_servers})
    stable, end = (
        offsets(admin, play.topic, range(4), OffsetSpec.latest(), committed=committed, timeout_ms=10_000)
        for committed in (True, False)
    )
    assert stable == end


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error()).__name__)
def test_no_error_before_the_decision_leaves_a_transaction_open(
    play: Play, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    """Fails if only an error of the attempt itself is followed by a sweep."""
    driver = play.driver()
    driver.recover(play.batch(0))
    for where, name in CALLS:
        with monkeypatch.context() as patched:
            broken: Any = lambda partition: partition == 1 and patched.setattr(where, name, failing(error))  # noqa: B023, E731
            with pytest.raises(
                (type(error()), RetriableError)
            ):  # a file that cannot be written now may be writable later
                driver.process(play.batch(0), Tasks(play, ROWS, between=broken))
        require_nothing_open(play)
    assert (play.decisions(), play.visible()) == ([], {})
    driver.process(play.batch(0), Tasks(play, ROWS))
    require_nothing_open(play)
    assert play.visible() == VISIBLE


@pytest.mark.parametrize("error", [KeyboardInterrupt, AssertionError, partial(FencedError, "as it seems")])
def test_a_transaction_that_may_already_have_been_decided_is_never_swept(
    play: Play, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    """The record is written, and an error hides it. Fails if the sweep ends rows that a restart finds decided."""
    driver = play.driver()
    driver.recover(play.batch(0))
    really = KafkaDecisionLog.append

    def append(log: KafkaDecisionLog, records: Sequence[Record]) -> int:
        really(log, records)
        raise error()

    with monkeypatch.context() as patched:
        patched.setattr(KafkaDecisionLog, "append", append)
        with pytest.raises(type(error())):
            driver.process(play.batch(0), Tasks(play, ROWS))
    assert len(play.open_transactions()) == len(ROWS)
    again = Tasks(play, ROWS)
    with pytest.raises((DecisionInDoubtError, FencedError)):
        driver.process(play.batch(0), again)  # the driver decides no more batches, and sweeps no transactions
    assert len(play.open_transactions()) == len(ROWS)
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (again.prepared, replay.prepared, replay.evaluated) == (0, 0, 1)
    assert play.visible() == VISIBLE
    require_nothing_open(play)


def test_a_decision_that_cannot_be_read_back_is_in_doubt(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if an error of the read-back counts as a refusal of the record, even with another class."""
    driver = play.driver()
    driver.recover(play.batch(0))
    with monkeypatch.context() as patched:
        patched.setattr(driver_producer, "_SLOW_COMMIT_S", -1)
        patched.setattr(decision_log, "offsets", failing(partial(BadRecordError, "unknown topic")))
        with pytest.raises(DecisionInDoubtError, match="cannot be read back"):
            driver.process(play.batch(0), Tasks(play, ROWS))
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert len(play.decisions()) == 1
    assert play.visible() == VISIBLE


@pytest.mark.parametrize(("where", "name"), [(Participants, "commit"), (DriverRun, "finish")])
def test_an_error_after_the_decision_leaves_only_decided_transactions_open(
    play: Play, monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    """A task's attempt that was not accepted is open. Fails if only the end of a batch sweeps it."""
    with monkeypatch.context() as patched:
        patched.setattr(where, name, failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            play.driver().process(play.batch(0), WithOrphan(play, ROWS))
    assert set(play.open_transactions()) <= {handle.transactional_id for handle in play.decided(0)}
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert play.visible() == VISIBLE
    require_nothing_open(play)
